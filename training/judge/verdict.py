"""Looks at a clip and says what it shows: the measure of the embedded checkpoint, from pixels and samples alone.

    judge(frames, wave) -> Verdict                       one clip
    score(verdicts, expectations) -> Scores              rates over many, against what their prompts fixed

An expectation maps attribute to value name and holds only what a prompt names: what it leaves open is not judged.
A loose word ("lilac") is a tuple of the names that are right.
`picture` and `sound` do the looking and the listening; numpy only, about 0.1 s for 56 frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training import world
from training.judge.picture import look
from training.judge.sound import hear

ATTRIBUTES = ("color", "shape", "background", "motion", "tempo", "sound", "size", "place")
FRAME_MS = 1000 / world.FPS
Expectation = Mapping[str, str | tuple[str, ...]]
EDGE_S = (0.02, 0.08)  # an event this close to the clip's start or end is not judged: too little of it shows


@dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes by value name, times in seconds, offsets in ms.

    `tempo` is None for what rests, `place` for what slides. A value is "unknown" where the clip shows no object or
    a sound like none of the world's. `offset_ms` has one entry for each visual event that lies well inside the clip,
    the nearest onset minus the event, and is empty where there is no onset. `pan` and `event_x` are 0 at the left
    edge of the picture and 1 at the right one.
    """

    color: str
    shape: str
    size: str
    background: str
    motion: str
    tempo: str | None
    place: str | None
    sound: str
    event_s: tuple[float, ...]
    onset_s: tuple[float, ...]
    offset_ms: tuple[float, ...]
    pan: tuple[float, ...]
    event_x: tuple[float, ...]
    duration_s: float

    @property
    def judged_event_s(self) -> tuple[float, ...]:
        return _inner(self.event_s, self.duration_s)

    @property
    def judged_onset_s(self) -> tuple[float, ...]:
        return _inner(self.onset_s, self.duration_s)

    @property
    def pan_error(self) -> float | None:
        """Mean distance between where it sounds and where it is seen, in picture widths."""
        if not self.event_s or not self.onset_s:
            return None
        nearest = [int(np.abs(np.array(self.event_s) - onset).argmin()) for onset in self.onset_s]
        return float(np.mean([abs(pan - self.event_x[i]) for pan, i in zip(self.pan, nearest, strict=True)]))


def _inner(times_s: Sequence[float], duration_s: float) -> tuple[float, ...]:
    return tuple(t for t in times_s if EDGE_S[0] < t < duration_s - EDGE_S[1])


def judge(frames: np.ndarray, wave: np.ndarray, fps: int = 24, sample_rate_hz: int = 32_000) -> Verdict:
    """Judges one clip: frames uint8 [F, H, W, 3] on a canvas of the world, wave float32 [2, N]."""
    seen, heard = look(np.asarray(frames), fps), hear(wave, sample_rate_hz)
    duration_s = len(frames) / fps
    onsets = np.array(heard.onset_s)
    offsets = [
        1000 * (onsets - e)[np.abs(onsets - e).argmin()] for e in _inner(seen.event_s, duration_s) if len(onsets)
    ]
    return Verdict(
        color=seen.color,
        shape=seen.shape,
        size=seen.size,
        background=seen.background,
        motion=seen.motion,
        tempo=seen.tempo,
        place=seen.place,
        sound=heard.sound,
        event_s=seen.event_s,
        onset_s=heard.onset_s,
        offset_ms=tuple(float(o) for o in offsets),
        pan=heard.pan,
        event_x=seen.event_x,
        duration_s=duration_s,
    )


@dataclass(frozen=True, slots=True)
class Rate:
    hits: int
    total: int

    @property
    def share(self) -> float:
        """Hits in 0..1; nothing judged is nothing wrong."""
        return self.hits / self.total if self.total else 1.0


@dataclass(frozen=True, slots=True)
class Scores:
    """`rates` has an entry per attribute and, beside them:

    all          every judged attribute of a clip is right
    events       as many sounds as visual events
    offset       visual event with an onset within one frame of it; an event that stays silent is a miss
    """

    rates: Mapping[str, Rate]
    offset_ms: tuple[float, ...]
    pan_error: float

    @property
    def offset_median_ms(self) -> float:
        return float(np.median(np.abs(self.offset_ms))) if self.offset_ms else 0.0

    @property
    def offset_p90_ms(self) -> float:
        return float(np.percentile(np.abs(self.offset_ms), 90)) if self.offset_ms else 0.0


def is_right(seen: str | None, expected: str | tuple[str, ...]) -> bool:
    """Whether a judged value is the expected one, or one of those that a loose word allows."""
    return seen == expected if isinstance(expected, str) else seen in expected


def score(verdicts: Sequence[Verdict], expectations: Sequence[Expectation]) -> Scores:
    """Counts what is right among what each prompt fixes; one expectation for each verdict."""
    hits = dict.fromkeys((*ATTRIBUTES, "all", "events", "offset"), 0)
    total, offset_ms, pan_errors = dict(hits), [], []

    def count(name: str, right: bool) -> None:
        hits[name] += right
        total[name] += 1

    for verdict, expected in zip(verdicts, expectations, strict=True):
        due = wanted(verdict, expected)
        right = {name: is_right(getattr(verdict, name), value) for name, value in due.items()}
        for name, hit in right.items():
            count(name, hit)
        count("all", all(right.values()))
        audible = due.get("sound", "silent" if "sound" in expected or not verdict.onset_s else "") != "silent"
        if audible and verdict.judged_event_s:
            count("events", len(verdict.judged_event_s) == len(verdict.judged_onset_s))
            for offset in verdict.offset_ms or (float("inf"),) * len(verdict.judged_event_s):
                count("offset", abs(offset) <= FRAME_MS)
            offset_ms += verdict.offset_ms
            if verdict.pan_error is not None:
                pan_errors.append(verdict.pan_error)
    rates = {name: Rate(hits[name], total[name]) for name in hits}
    return Scores(rates, tuple(offset_ms), float(np.mean(pan_errors)) if pan_errors else 0.0)


def wanted(verdict: Verdict, expected: Expectation) -> dict[str, Any]:
    """The attributes of one clip that can be judged, and their right values."""
    due = {name: value for name, value in expected.items() if name in ATTRIBUTES}
    motion = due.get("motion", verdict.motion)
    if not isinstance(motion, str):  # a loose word
        motion = verdict.motion if verdict.motion in motion else motion[0]
    if motion == "stay" or verdict.tempo is None:
        due.pop("tempo", None)
    if motion in ("left", "right"):
        due.pop("place", None)
    sound = due.pop("sound", None)
    if sound is not None and (sound := _due_sound(verdict, sound, motion, expected.get("tempo"))):
        due["sound"] = sound
    return due


def _due_sound(verdict: Verdict, sound: str, motion: str, tempo: str | None) -> str | None:
    """What should be heard: the timbre where an event comes early enough, silence where none comes, None between."""
    if sound == "silent" or motion == "stay":
        return "silent"
    if tempo is None:
        first_s = min(verdict.event_s, default=float("inf"))
    else:
        index = world.ATTRIBUTES["tempo"].index(tempo)
        first_s = world.CROSSING_S[index] if motion in ("left", "right") else world.PERIOD_S[index] / 2
    if first_s < verdict.duration_s - EDGE_S[1]:
        return sound
    return "silent" if first_s >= verdict.duration_s else None
