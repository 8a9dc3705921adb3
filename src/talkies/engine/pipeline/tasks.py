"""What a task is made of. Loop, server and codecs read a spec here, never a task's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from talkies.codecs.text.presentation import EncoderAudio, EncoderImage, EncoderVideo, Visual
from talkies.engine.pipeline.condition_media import (
    MediaAccess,
    MediaInput,
    SoundInput,
    VisualInput,
    load_keyframe,
    load_reference,
)
from talkies.engine.pipeline.given import Given
from talkies.engine.pipeline.lock_media import given_on, read_locks
from talkies.h3.clip_plan import plan, plan_notes
from talkies.h3.geometry import Geometry, Limits
from talkies.media.prompt_hints import prompt_hints
from talkies.media.read.limits import ReferenceTotals
from talkies.media.read.resize import Fit, fit_keyframes, kept_size, resolved_fit
from talkies.request import Condition, Kind, Task, VideoRequest


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its media decoded and sized: all that the user can get wrong is behind us."""

    request: VideoRequest
    task: Task
    geometry: Geometry
    inputs: tuple[MediaInput, ...] = ()  # in request order, which is semantic; without locks
    given: tuple[Given, ...] = ()  # its locks, which the text encoder never sees
    warnings: tuple[str, ...] = ()

    @property
    def conditions_used(self) -> list[dict[str, Any]]:
        """What became of each condition: its size, crop, rate and length, before and after."""
        return [item.used for item in (*self.inputs, *self.given)]

    @property
    def presentation(self) -> tuple[Visual, ...]:
        """What the text encoder reads of the inputs: the same pixels that are VAE-encoded, and labels for sounds."""
        return tuple(_shown(item) for item in self.inputs)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """``partition``: the DiT that serves it. ``prepare``: media in, sized arrays out."""

    partition: str
    prepare: Callable[[VideoRequest, Limits, MediaAccess], Prepared]


def prepare(request: VideoRequest, limits: Limits, access: MediaAccess) -> Prepared:
    """Of any task, with its locks. Raises ``InvalidRequest`` for all that the user can get wrong."""
    request, locks, lock_notes = read_locks(request, limits, access)
    prepared = TASKS[request.resolved_task].prepare(request, limits, access)
    if not locks:
        return prepared
    given, more = given_on(locks, prepared.geometry, limits)
    return replace(prepared, given=given, warnings=(*prepared.warnings, *lock_notes, *more))


def prepare_t2va(request: VideoRequest, limits: Limits, access: MediaAccess) -> Prepared:
    geometry = plan(request, limits)
    warnings = (*plan_notes(request, geometry, limits), *prompt_hints(request.prompt, ()))
    return Prepared(request=request, task=Task.T2VA, geometry=geometry, warnings=warnings)


def prepare_fl2va(request: VideoRequest, limits: Limits, access: MediaAccess) -> Prepared:
    """Keyframes: upright, the first presented one gives the canvas unless the request names it
    (docs/model.md, Keyframes and references)."""
    plan(request, limits, auto_aspect=1.0)  # length and prompt are refused before any file is opened
    pictures = [load_keyframe(c, access) for c in request.keyframes]
    height, width = pictures[0].shape[:2]
    geometry = plan(request, limits, auto_aspect=width / height)
    free = request.target.width is None and request.target.aspect in (None, "auto", "adaptive")
    fit = ("adapt" if free else "crop") if request.fit == "auto" else request.fit
    sized = fit_keyframes(pictures, width=geometry.width, height=geometry.height, fit=fit)
    return Prepared(
        request=request,
        task=Task.FL2VA,
        geometry=geometry,
        inputs=tuple(
            VisualInput(kind=f"keyframe-{c.role}", frames=sized[i][None], used=_used(c, i, pictures[i], fit, geometry))
            for i, c in enumerate(request.keyframes)
        ),
        warnings=(
            *plan_notes(request, geometry, limits),
            *prompt_hints(request.prompt, [("image", False)] * len(sized), need_roles=False),
        ),
    )


def _used(condition: Condition, order: int, upright: np.ndarray, fit: Fit, geometry: Geometry) -> dict[str, Any]:
    height, width = upright.shape[:2]
    fit = resolved_fit(fit, order)
    kept = kept_size(width, height, canvas=(geometry.width, geometry.height), fit=fit)
    return {
        "kind": "image",
        "role": condition.role,
        "source_size": f"{width}x{height}",
        "size": geometry.size,
        "fit": fit,
        "kept": "x".join(map(str, kept)),
    }


def prepare_ref2va(request: VideoRequest, limits: Limits, access: MediaAccess) -> Prepared:
    """References in request order; the canvas never follows them (docs/model.md, Keyframes and references)."""
    geometry = plan(request, limits)
    totals = ReferenceTotals(limits=access.limits)
    inputs: list[MediaInput] = []
    warnings = plan_notes(request, geometry, limits)
    for index, condition in enumerate(request.references):
        item, notes = load_reference(condition, index, geometry, limits, access, totals)
        inputs.append(item)
        warnings += notes
    return Prepared(
        request=request,
        task=Task.REF2VA,
        geometry=geometry,
        inputs=tuple(inputs),
        warnings=(*warnings, *prompt_hints(request.prompt, _kinds(inputs))),
    )


def _kinds(inputs: Sequence[MediaInput]) -> list[tuple[Kind, bool]]:
    """(kind, whether a video has sound) of each reference."""
    return [
        ("audio", True)
        if isinstance(item, SoundInput)
        else ("video" if item.kind == "video" else "image", item.wave is not None)
        for item in inputs
    ]


TASKS: dict[Task, TaskSpec] = {
    Task.T2VA: TaskSpec(partition="fl2va", prepare=prepare_t2va),
    Task.FL2VA: TaskSpec(partition="fl2va", prepare=prepare_fl2va),
    Task.REF2VA: TaskSpec(partition="ref2va", prepare=prepare_ref2va),
}


def _shown(item: MediaInput) -> Visual:
    if isinstance(item, SoundInput):
        return EncoderAudio()
    if item.kind == "video":
        return EncoderVideo(frames=item.frames, has_soundtrack=item.wave is not None)
    return EncoderImage(pixels=item.frames[0])
