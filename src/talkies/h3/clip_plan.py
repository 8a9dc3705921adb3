"""The clip that a request will become on one checkpoint: its canvas and its length, by that checkpoint's limits."""

from __future__ import annotations

from talkies.errors import InvalidRequest, UnsupportedTask
from talkies.few_steps import checked_ladder
from talkies.h3 import geometry
from talkies.h3.geometry import Geometry, Limits
from talkies.quality import Chosen, chosen, num_forwards_of
from talkies.request import Task, VideoRequest
from talkies.values import parse_ratio, plain

HALF_MS = 0.0005  # lengths are printed with three decimals, and what is printed is taken back


def plan(request: VideoRequest, limits: Limits, *, auto_aspect: float | None = None) -> Geometry:
    """The clip that ``request`` will become on a checkpoint with ``limits``.

    ``auto_aspect`` is the ratio of the first presented keyframe (its canvas follows the picture unless the
    request names one). Raises ``InvalidRequest`` or ``UnsupportedTask``; touches no weights.
    """
    task, target = request.resolved_task, request.target
    if str(task) not in limits.tasks:
        raise UnsupportedTask(
            f"task={task} is not served by this checkpoint, which has {', '.join(limits.tasks)}",
            hint="load the partition that has it, or change the conditions",
            param="task",
        )
    checked_ladder(request, limits.adapters)  # refuses adapters that are not known or not for this, and other steps
    if len(request.prompt) > limits.max_prompt_chars:
        raise InvalidRequest(
            f"prompt has {len(request.prompt)} characters, over the limit of {limits.max_prompt_chars}",
            hint="shorten it",
            param="prompt",
        )
    if target.width is not None and target.height is not None:
        width, height = target.width, target.height
    else:
        aspect = auto_aspect if task is Task.FL2VA else None
        named = target.aspect if target.aspect not in (None, "auto", "adaptive") else None
        if named is not None:
            aspect = parse_ratio(named)
        width, height = geometry.canvas_of_aspect(
            aspect or parse_ratio(limits.default_aspect), limits, of_picture=named is None and aspect is not None
        )
    return geometry.geometry_of(width, height, _frames(request, limits), limits)


def plan_notes(request: VideoRequest, made: Geometry, limits: Limits) -> list[str]:
    """For the user: a length that was snapped, words that the checkpoint has never seen, and what is not known of the
    step cache."""
    return [*snap_notes(request, made), *limits.card.notes(request.prompt), *cache_of(request, limits).notes]


def num_forwards(request: VideoRequest, limits: Limits) -> int:
    """Of one output. Raises ``InvalidRequest`` for adapters that are not known, or not for its task."""
    return num_forwards_of(request, limits.adapters, limits.default_num_sigmas)


def cache_of(request: VideoRequest, limits: Limits) -> Chosen:
    """What its ``quality`` means. Raises as :func:`num_forwards`."""
    return chosen(request, limits.tiers, limits.adapters, limits.default_num_sigmas)


def snap_notes(request: VideoRequest, made: Geometry) -> list[str]:
    """For the user, where the clip is longer than the length asked for: only some lengths are legal."""
    target = request.target
    if target.num_frames not in (None, made.num_frames):
        return [f"num_frames={target.num_frames} became {made.num_frames}, the next legal length"]
    if target.seconds is not None and round(target.seconds * made.fps) != made.num_frames:
        return [
            f"seconds={target.seconds:g} became {made.duration_s:.3f} ({made.num_frames} frames), the next legal length"
        ]
    return []


def _frames(request: VideoRequest, limits: Limits) -> int:
    target = request.target
    if target.num_frames is not None:
        frames, param = geometry.snap_frames(target.num_frames, limits), "num_frames"
    elif target.seconds is not None:
        frames, param = _frames_of_seconds(target.seconds, limits), "seconds"
    else:
        ref = request.resolved_task is Task.REF2VA
        frames, param = (limits.default_num_frames_ref2va if ref else limits.default_num_frames), "num_frames"
    if not (limits.min_frames <= frames <= limits.max_frames):
        low, high = geometry.printed_range(limits.min_frames / limits.fps, limits.max_frames / limits.fps)
        raise InvalidRequest(
            f"{param} gives {frames} frames, outside {limits.min_frames}..{limits.max_frames}",
            hint=f"{low}..{high} seconds at {limits.fps} fps",
            param=param,
        )
    return frames


def _frames_of_seconds(seconds: float, limits: Limits) -> int:
    """Raises ``InvalidRequest`` outside the limits; the length that a clip was said to have is inside in any case."""
    told = round(seconds * limits.fps)
    is_legal = geometry.snap_frames(told, limits) == told and limits.min_frames <= told <= limits.max_frames
    if is_legal and abs(told / limits.fps - seconds) <= HALF_MS + 1e-9:
        return told
    low, high = geometry.printed_range(limits.min_seconds, limits.max_seconds)
    if not (limits.min_seconds - HALF_MS - 1e-9 <= seconds <= limits.max_seconds + HALF_MS + 1e-9):
        raise InvalidRequest(
            f"seconds={plain(seconds)} is outside {low}..{high}",
            hint=f"use a duration between {low} and {high} seconds",
            param="seconds",
        )
    inside = min(max(seconds, limits.min_seconds), limits.max_seconds)
    return max(geometry.frames_of_seconds(inside, limits), limits.min_frames)
