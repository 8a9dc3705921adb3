"""When something hits, flashes or stops in the picture, when something sounds, and how far apart the two are.

A signal method without a model. Picture: frame differences, whose energy says how much moves and whose centroid says
where; an event is a sudden change of either (a velocity that flips, a motion that stops or starts dead, a flash).
Sound: sudden rises of the level. The offset is the one on which most sounds have an event; both lists may hold events
that the other lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAX_SIDE = 192  # pictures are measured at this size
CONTRAST_FLOOR = 8  # of 255: what compression noise may change
MAX_OFFSET_S = 0.5
MATCH_S = 0.06  # events within this of the common offset belong to it
SILENCE_DBFS = -60.0


@dataclass(slots=True)
class MotionTrack:
    """Frame differences of a clip, fed one small picture at a time; entry i lies between frames i and i + 1."""

    times_s: list[float] = field(default_factory=list)  # of frames
    energy: list[float] = field(default_factory=list)  # mean change over the picture, 0..255, noise removed
    centroid: list[tuple[float, float]] = field(default_factory=list)  # (x, y) in 0..1 of the longer side
    brightness: list[float] = field(default_factory=list)  # mean of the signed change
    _last: np.ndarray | None = None

    def add(self, time_s: float, picture: np.ndarray) -> None:
        """``picture``: uint8 [h, w, 3], about MAX_SIDE wide."""
        current = picture.astype(np.int16)
        self.times_s.append(time_s)
        if self._last is not None:
            change = current - self._last
            size = np.abs(change).max(axis=2)
            size = np.maximum(0, size - (CONTRAST_FLOOR + 4 * int(np.median(size)))).astype(np.float64)
            total = size.sum()
            h, w = size.shape
            if total:
                x = float(size.sum(axis=0) @ np.arange(w) / total / max(h, w))
                y = float(size.sum(axis=1) @ np.arange(h) / total / max(h, w))
            else:
                x = y = float("nan")
            self.energy.append(float(total / size.size))
            self.centroid.append((x, y))
            self.brightness.append(float(change.mean()))
        self._last = current


def visual_events(track: MotionTrack) -> np.ndarray:
    """Seconds [K] at which the picture changes abruptly, ascending."""
    energy = np.asarray(track.energy)
    if len(energy) < 4 or energy.max() <= 0:
        return np.zeros(0)
    floor = max(0.01, 0.05 * float(np.percentile(energy[energy > 0], 90)))
    times = np.asarray(track.times_s)
    found = _flips(times, energy, np.asarray(track.centroid), floor)
    found += _stops(times, energy, floor)
    found += _bursts(times, energy, floor)
    return _thin(np.sort(np.asarray(found)), 0.06) if found else np.zeros(0)


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


def _bursts(times: np.ndarray, energy: np.ndarray, floor: float) -> list[float]:
    """Flashes (shown at once, in the frame that first has them) and motion that starts dead."""
    found = []
    for i in range(1, len(energy)):
        before = energy[max(0, i - 3) : i].max()
        if energy[i] < 3 * before + 2 * floor:
            continue
        after = energy[i + 1] if i + 1 < len(energy) else 0.0
        if after > 2 * energy[i]:
            continue  # the start of a motion that only speeds up
        moves_on = i + 3 < len(energy) and energy[i + 1 : i + 4].min() > 0.75 * energy[i + 1] > 0.5 * energy[i]
        share = 1.0 - min(1.0, float(energy[i] / after)) if moves_on and after > 0 else 1.0
        found.append(float(times[i] + share * (times[i + 1] - times[i])))
    return found


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


def offset_s(visual: np.ndarray, onsets: np.ndarray) -> float | None:
    """Seconds by which sounds follow their events (negative: they lead), or ``None`` if the two have no pattern."""
    if not len(visual) or not len(onsets):
        return None
    differences = onsets[:, None] - visual[None, :]
    near = differences[np.abs(differences) <= MAX_OFFSET_S]
    best: tuple[float, float] | None = None
    for delta in near:
        distance = np.abs(differences - delta).min(axis=1)
        score = float(np.exp(-((distance / (MATCH_S / 2)) ** 2)).sum()) - 0.6 * abs(float(delta))
        if best is None or score > best[0]:
            best = (score, float(delta))
    if best is None:
        return None
    rest = differences - best[1]
    closest = np.abs(rest).argmin(axis=1)
    matched = differences[np.arange(len(onsets)), closest]
    matched = matched[np.abs(matched - best[1]) <= MATCH_S]
    if len(matched) * 3 < len(onsets):
        return None  # most sounds have nothing to see: speech, music
    return float(np.median(matched))


def _thin(values: np.ndarray, gap: float) -> np.ndarray:
    kept: list[float] = []
    for value in values:
        if not kept or value - kept[-1] > gap:
            kept.append(float(value))
    return np.asarray(kept)
