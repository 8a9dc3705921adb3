"""Which part of a clip is given and which is made, as integers (docs/model.md, Locked rows).

A lock's window, from ``start_time_s`` to ``end_time_s`` of the clip, is what is made anew; what lies outside is kept. A
latent that the window touches is made as a whole, so that in latents the window is never smaller than in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from talkies.errors import InvalidRequest
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Geometry, Limits, canvas_of_aspect, encodable_frames
from talkies.request import Condition, VideoRequest
from talkies.values import plain

HALF_MS = 0.0005  # lengths are printed with three decimals, and what is printed is taken back
LACK_FRAMES = 0.5  # that a lock may be shorter than the clip: containers and codecs round


class Span(NamedTuple):
    """``start`` up to, not including, ``stop``."""

    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedLatents:
    """What is given of the target: spans of latent frames, and of audio latents, the same in both channels."""

    video: tuple[Span, ...] = ()
    audio: tuple[Span, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.video or self.audio)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockPlan:
    """One lock on one clip. ``made`` is the window: of ``num_given`` frames, or samples a channel. ``made_latents`` are
    those of ``num_latents`` that are made. Both are empty where all is kept."""

    role: str
    made: Span
    num_given: int
    made_latents: Span
    num_latents: int

    @property
    def keeps_all(self) -> bool:
        return self.made.start == self.made.stop

    def kept_rows(self, geometry: Geometry) -> tuple[Span, ...]:
        """Rows of the target's stream that stand for :attr:`kept_latents`."""
        if self.role == "footage":
            size = geometry.rows_per_frame
            return tuple(Span(start * size, stop * size) for start, stop in self.kept_latents)
        offsets = (0, self.num_latents)  # channel-major
        return tuple(Span(at + start, at + stop) for at in offsets for start, stop in self.kept_latents)

    @property
    def kept_latents(self) -> tuple[Span, ...]:
        made = self.made_latents
        spans = (Span(0, made.start), Span(made.stop, self.num_latents))
        return tuple(span for span in spans if span.start < span.stop)


def plan_lock(condition: Condition, geometry: Geometry, limits: Limits) -> LockPlan:
    """Raises ``InvalidRequest`` for a window that is not in the clip, shorter than a frame, or all of the clip."""
    first_s, last_s = _window_s(condition, geometry)
    if condition.role == "soundtrack":
        num_given, num_latents = geometry.clip_samples, geometry.audio_latents
        made = Span(round(first_s * geometry.sample_rate_hz), min(num_given, round(last_s * geometry.sample_rate_hz)))
        hop = limits.audio_hop
        latents = Span(made.start // hop, min(num_latents, -(-made.stop // hop)))
    else:
        num_given, num_latents = geometry.num_frames, geometry.latent_frames
        made = Span(math.floor(first_s * geometry.fps + 0.5), math.floor(last_s * geometry.fps + 0.5))
        latents = Span(latent_of_frame(made.start, limits), latent_of_frame(made.stop - 1, limits) + 1)
    if not condition.has_window:
        return LockPlan(
            role=condition.role,
            made=Span(0, 0),
            num_given=num_given,
            made_latents=Span(0, 0),
            num_latents=num_latents,
        )
    if made.start >= made.stop:
        raise InvalidRequest(
            f"start_time_s={plain(first_s)} and end_time_s={plain(last_s)} are less than a frame apart",
            hint=f"a frame takes {1 / geometry.fps:.3f} seconds",
            param="end_time_s",
        )
    if made == (0, num_given):
        raise InvalidRequest(
            f"the part to make anew is all of the clip, so nothing of the {condition.role} is kept",
            hint=f"make the part shorter, or leave the {condition.role} out",
            param="conditions",
        )
    return LockPlan(role=condition.role, made=made, num_given=num_given, made_latents=latents, num_latents=num_latents)


def latent_of_frame(frame: int, limits: Limits) -> int:
    """The latent frame that stands for a frame: of a clip of 17 the first one for 1, the others for 4 each."""
    clip, inside = divmod(frame, limits.clip_frames)
    group = (limits.clip_frames - 1) // (limits.clip_latents - 1)
    return clip * limits.clip_latents + (0 if inside == 0 else 1 + (inside - 1) // group)


def frames_of_lock(seconds: float, limits: Limits) -> int:
    """The longest legal length that a lock of ``seconds`` covers; what is over is left out.

    Raises ``InvalidRequest`` for one that no clip is short enough for.
    """
    frames = encodable_frames(min(math.floor(seconds * limits.fps + LACK_FRAMES), limits.max_frames), limits)
    if frames < limits.min_frames:
        raise InvalidRequest(
            f"the file to keep has {seconds:.2f} s, the shortest clip {limits.min_frames / limits.fps:.2f} s",
            hint="use a longer one",
            param="conditions",
        )
    return frames


def longest_s(request: VideoRequest, limits: Limits) -> float:
    """Of a lock's file, what can become a part of the clip: its length where the request names one, else the longest
    clip's. Raises ``InvalidRequest`` for a length that is none."""
    if _leaves_length(request):
        return limits.max_frames / limits.fps
    return plan(request, limits, auto_aspect=1.0).duration_s


def _leaves_length(request: VideoRequest) -> bool:
    return request.target.seconds is None and request.target.num_frames is None


def check_covers(role: str, seconds: float, geometry: Geometry, limits: Limits) -> None:
    """Raises ``InvalidRequest`` for a lock of ``seconds`` that ends before the clip does."""
    if seconds * geometry.fps + LACK_FRAMES >= geometry.num_frames:
        return
    covered = frames_of_lock(seconds, limits)
    raise InvalidRequest(
        f"the {role} has {seconds:.2f} s, the clip {geometry.duration_s:.3f} s",
        hint=f"use a longer one, or a clip of at most {covered} frames ({covered / geometry.fps:.3f} seconds)",
        param="conditions",
    )


def with_target_of_locks(
    request: VideoRequest, limits: Limits, *, seconds: float | None = None, aspect: float | None = None
) -> VideoRequest:
    """The request with what it leaves free said by its locks: the canvas by the ratio of its footage, the length by the
    shortest of them (``seconds``). What it names itself stays."""
    target = request.target
    if aspect is not None and target.width is None and target.aspect in (None, "auto", "adaptive"):
        width, height = canvas_of_aspect(aspect, limits, of_picture=True)
        target = replace(target, width=width, height=height, aspect=None)
    if seconds is not None and _leaves_length(request):
        target = replace(target, num_frames=frames_of_lock(seconds, limits))
    return request if target is request.target else request.replace(target=target)


def _window_s(condition: Condition, geometry: Geometry) -> tuple[float, float]:
    length = geometry.duration_s
    first, last = condition.start_time_s, condition.end_time_s
    if first >= length:
        raise InvalidRequest(
            f"start_time_s={plain(first)} is outside the clip of {length:.3f} s",
            hint="start earlier",
            param="start_time_s",
        )
    if last is not None and last > length + HALF_MS + 1e-9:
        raise InvalidRequest(
            f"end_time_s={plain(last)} is outside the clip of {length:.3f} s",
            hint="leave it out to make all from the start on anew",
            param="end_time_s",
        )
    return first, length if last is None else min(last, length)
