"""When something hits, flashes or stops in the picture, when something sounds, and how far apart the two are.

A signal method without a model. Picture: frame differences, whose energy says how much moves and whose centroid says
where; an event is a sudden change of either (a velocity that flips, a motion that stops or starts dead, a flash).
Sound: sudden rises of the level. The offset is the one on which most sounds have an event; both lists may hold events
that the other lacks.
"""

from __future__ import annotations

import numpy as np

from talkies.media.inspect.motion import MotionTrack, object_tracks

MAX_OFFSET_S = 0.5
MATCH_S = 0.06  # events within this of the common offset belong to it
GOOD_MATCH = 0.7  # of 1: sounds and events agree so well that no finer look is needed
SILENCE_DBFS = -60.0


def sync_offset_s(track: MotionTrack, wave: np.ndarray, sample_rate_hz: int) -> float | None:
    """Seconds by which sounds follow their events, or ``None``. Several objects are told apart only if need be."""
    onsets = audio_onsets(wave, sample_rate_hz)
    offset, quality = match(visual_events(track), onsets)
    if quality < GOOD_MATCH and len(onsets):
        by_object, better = match(visual_events(track, by_object=True), onsets)
        if better > quality:
            offset = by_object
    return offset


def visual_events(track: MotionTrack, *, by_object: bool = False) -> np.ndarray:
    """Seconds [K] at which the picture, or one of its objects, changes abruptly, ascending."""
    energy = np.asarray(track.energy)
    if len(energy) < 4 or energy.max() <= 0:
        return np.zeros(0)
    floor = max(0.01, 0.05 * float(np.percentile(energy[energy > 0], 90)))
    times = np.asarray(track.times_s)
    found = _bursts(times, energy, floor, track.thumbnails)
    for part, centroid in object_tracks(track) if by_object else [(energy, np.asarray(track.centroid))]:
        found += _flips(times, part, centroid, floor / 4 if by_object else floor)
        found += _stops(times, part, floor)
    gap = 0.01 if by_object else 0.06  # two objects may hit at nearly the same time
    return _thin(np.sort(np.asarray(found)), gap) if found else np.zeros(0)


def _flips(times: np.ndarray, energy: np.ndarray, centroid: np.ndarray, floor: float) -> list[float]:
    """Velocity reversals: the paths before and after, extended, meet at the impact (finer than a frame)."""
    moving = np.flatnonzero(energy > floor)
    if len(moving) < 4:
        return []
    middle = (times[1:] + times[:-1]) / 2
    m, c = middle[moving], centroid[moving]
    # Speed between neighbouring differences; pauses of more than three frames separate motions.
    speeds = np.linalg.norm(np.diff(c, axis=0), axis=1) / np.diff(m)
    typical = float(np.percentile(speeds, 90))
    frame_s = float(np.median(np.diff(times)))
    candidates: list[tuple[float, float]] = []  # (strength, time)
    for skip in (0, 1):  # the impact lies between two differences, or inside one
        for i in range(3, len(m) - 2 - skip):
            before, after = slice(i - 3, i), slice(i + skip, i + skip + 3)
            if m[i + skip + 2] - m[i - 3] > (8.5 + skip) * frame_s:
                continue
            v_before, v_after = _velocity(m[before], c[before]), _velocity(m[after], c[after])
            if v_before is None or v_after is None:
                continue
            slow, fast = sorted((float(np.linalg.norm(v_before)), float(np.linalg.norm(v_after))))
            turn = v_after - v_before
            jump = float(np.linalg.norm(turn))
            # A thrown ball also turns round at the top of its path, but slowly; an impact keeps much of its speed.
            if fast < 0.5 * typical or slow < 0.3 * fast or float(v_before @ v_after) > 0.5 * slow * fast:
                continue
            axis = turn / jump
            last, first = c[before][-1] - v_before * m[before][-1], c[after][0] - v_after * m[after][0]
            meet = float((last - first) @ axis) / jump
            if m[before][-1] - frame_s / 2 <= meet <= m[after][0] + frame_s / 2:
                candidates.append((jump, meet))
    kept: list[float] = []
    for _, time in sorted(candidates, reverse=True):
        if all(abs(time - other) > 3 * frame_s for other in kept):
            kept.append(time)
    return kept


def _velocity(times: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    """Mean velocity [2] of three places, ``None`` unless both steps go that way: a codec's jitter goes to and fro."""
    steps = np.diff(places, axis=0)
    velocity = (places[-1] - places[0]) / (times[-1] - times[0])
    return velocity if (steps @ velocity > 0).all() else None


def _stops(times: np.ndarray, energy: np.ndarray, floor: float) -> list[float]:
    """Motion that ends dead, placed inside its last interval by how much of a full interval's motion is left."""
    found = []
    for i in range(2, len(energy) - 3):
        recent = energy[max(0, i - 6) : i].max()
        if energy[i - 1] < max(3 * floor, 0.55 * recent) or energy[i - 2] < 0.4 * energy[i - 1]:
            continue
        begin = i - 1  # of the steady motion, at most eight intervals back
        while begin > max(0, i - 8) and energy[begin - 1] > 0.4 * recent:
            begin -= 1
        course = np.arange(begin, i)
        slope, level = np.polyfit(course, energy[course], 1) if len(course) > 3 else (0.0, energy[course].mean())
        if energy[i + 1 : i + 4].max() > 0.12 * energy[i - 1] or energy[i] > 1.3 * max(
            energy[i - 1], slope * i + level
        ):
            continue
        # Codecs show a slow object's motion in jerks, so the remainder is counted over several intervals.
        anchor = max(begin, i - 4)
        left, at = float(energy[anchor : i + 4].sum()), float(anchor)
        while at < i + 1 and left > 0:
            pace = max(slope * at + level, 0.2 * recent)
            step = min(1.0, left / pace)
            left, at = left - step * pace, at + step
        found.append(float(np.interp(min(at, i + 1), np.arange(len(times)), times)))
    return found


def _bursts(times: np.ndarray, energy: np.ndarray, floor: float, thumbnails: list[np.ndarray]) -> list[float]:
    """Flashes (shown at once, in the frame that first has them) and motion that starts dead.

    A burst that brings back the picture from before an earlier one is that flash's end and makes no sound.
    """
    found: list[float] = []
    begun: list[int] = []  # frames just before the bursts so far
    for i in range(1, len(energy)):
        before = energy[max(0, i - 3) : i].max()
        if energy[i] < 3 * before + 2 * floor:
            continue
        after = energy[i + 1] if i + 1 < len(energy) else 0.0
        if after > 2 * energy[i]:
            continue  # the start of a motion that only speeds up
        if any(
            _distance(thumbnails[i + 1], thumbnails[b]) < 0.2 * _distance(thumbnails[i], thumbnails[b]) for b in begun
        ):
            begun.clear()
            continue
        begun.append(i)
        moves_on = i + 3 < len(energy) and energy[i + 1 : i + 4].min() > 0.75 * energy[i + 1] > 0.5 * energy[i]
        share = 1.0 - min(1.0, float(energy[i] / after)) if moves_on and after > 0 else 1.0
        found.append(float(times[i] + share * (times[i + 1] - times[i])))
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())


def audio_onsets(wave: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    """Seconds [K] at which the level of float [C, N] rises suddenly, ascending."""
    hop = max(1, sample_rate_hz // 1000)
    power = (wave.astype(np.float64) ** 2).mean(axis=0)
    blocks = len(power) // hop
    if blocks < 8:
        return np.zeros(0)
    level = power[: blocks * hop].reshape(blocks, hop).mean(axis=1)
    # 4 ms of smoothing forwards only: the rise keeps its place.
    cumulated = np.concatenate([[0.0], np.cumsum(level)])
    ends = np.minimum(np.arange(blocks) + 4, blocks)
    smooth = (cumulated[ends] - cumulated[:blocks]) / (ends - np.arange(blocks))
    db = 10 * np.log10(smooth + 1e-12)
    loud = max(SILENCE_DBFS, float(db.max()) - 30)
    found: list[int] = []
    i = 0
    while i < blocks:
        before = db[max(0, i - 25) : max(0, i - 2)]
        quiet = float(np.mean(before)) if len(before) else -120.0
        peak_at = i + int(np.argmax(db[i : i + 15]))
        if db[peak_at] > loud and db[peak_at] - quiet > 9 and db[i] - quiet > 6:
            found.append(_first_loud(level, i, peak_at))
            i = peak_at + 30
        else:
            i += 1
    return np.asarray(sorted(set(found)), float) * hop / sample_rate_hz


def _first_loud(level: np.ndarray, start: int, peak_at: int) -> int:
    """The first millisecond that reaches a fifth of the peak's amplitude: encoders smear a quiet echo before it."""
    around = level[max(0, start - 2) : peak_at + 5]
    return max(0, start - 2) + int(np.argmax(around >= 0.04 * around.max()))


def match(visual: np.ndarray, onsets: np.ndarray) -> tuple[float | None, float]:
    """(offset in seconds, agreement 0..1). Negative: sounds lead. ``None`` if the two have no pattern in common."""
    if not len(visual) or not len(onsets):
        return None, 0.0
    differences = onsets[:, None] - visual[None, :]
    best, best_score = None, -np.inf
    for delta in differences[np.abs(differences) <= MAX_OFFSET_S]:
        distance = np.abs(differences - delta).min(axis=1)
        score = float(np.exp(-((distance / (MATCH_S / 2)) ** 2)).sum()) - 0.6 * abs(float(delta))
        if score > best_score:
            best, best_score = float(delta), score
    if best is None:
        return None, 0.0
    closest = np.abs(differences - best).argmin(axis=1)
    matched = differences[np.arange(len(onsets)), closest]
    matched = matched[np.abs(matched - best) <= MATCH_S]
    if len(matched) * 3 < len(onsets):
        return None, 0.0  # most sounds have nothing to see: speech, music
    offset = float(np.median(matched))
    agreement = np.exp(-(((matched - offset) / (MATCH_S / 2)) ** 2)).sum() / len(onsets)
    return offset, float(agreement)


def _thin(values: np.ndarray, gap: float) -> np.ndarray:
    kept: list[float] = []
    for value in values:
        if not kept or value - kept[-1] > gap:
            kept.append(float(value))
    return np.asarray(kept)
