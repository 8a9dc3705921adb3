"""What a task is made of. Loop, server and codecs read a spec here, never a task's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from talkies.codecs.presentation import EncoderImage, Visual
from talkies.errors import MediaError, UnsupportedTask
from talkies.geometry import Geometry, Limits
from talkies.media.decode import read_image
from talkies.media.resize import fit_keyframes
from talkies.model.conditions import Condition as LayoutCondition
from talkies.model.conditions import VisualCondition
from talkies.request import Task, VideoRequest, plan


@dataclass(frozen=True, kw_only=True)
class VisualInput:
    """Pixels that are VAE-encoded and shown to the text encoder: uint8 [F, H, W, 3]. ``kind`` as in the layout."""

    kind: str
    frames: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its media decoded and sized: all that the user can get wrong is behind us."""

    request: VideoRequest
    task: Task
    geometry: Geometry
    visuals: tuple[VisualInput, ...] = ()
    presentation: tuple[Visual, ...] = ()  # what the text encoder sees, in order
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """``partition``: the DiT that serves it. ``prepare``: media in, sized arrays out."""

    partition: str
    prepare: Callable[[VideoRequest, Limits], Prepared]


def prepare_t2va(request: VideoRequest, limits: Limits) -> Prepared:
    return Prepared(request=request, task=Task.T2VA, geometry=plan(request, limits))


def prepare_fl2va(request: VideoRequest, limits: Limits) -> Prepared:
    """Keyframes: upright, the first presented one gives the canvas unless the request names it (spec 7.1)."""
    plan(request, limits, auto_aspect=1.0)  # length and prompt are refused before any file is opened
    pictures = [read_image(_local(c.uri), name=f"{c.role} frame {c.uri}") for c in request.keyframes]
    height, width = pictures[0].shape[:2]
    geometry = plan(request, limits, auto_aspect=width / height)
    free = request.target.width is None and request.target.aspect in (None, "auto", "adaptive")
    fit = ("adapt" if free else "crop") if request.fit == "auto" else request.fit
    sized = fit_keyframes(pictures, width=geometry.width, height=geometry.height, fit=fit)
    return Prepared(
        request=request,
        task=Task.FL2VA,
        geometry=geometry,
        visuals=tuple(
            VisualInput(kind=f"keyframe-{c.role}", frames=picture[None])
            for c, picture in zip(request.keyframes, sized, strict=True)
        ),
        presentation=tuple(EncoderImage(pixels=picture) for picture in sized),
    )


def prepare_ref2va(request: VideoRequest, limits: Limits) -> Prepared:
    raise UnsupportedTask(
        "task=ref2va needs reference media, which this version does not prepare yet",
        hint="use text alone, or --first-frame and --last-frame",
        param="task",
    )


TASKS: dict[Task, TaskSpec] = {
    Task.T2VA: TaskSpec(partition="fl2va", prepare=prepare_t2va),
    Task.FL2VA: TaskSpec(partition="fl2va", prepare=prepare_fl2va),
    Task.REF2VA: TaskSpec(partition="ref2va", prepare=prepare_ref2va),
}


def layout_conditions(visuals: tuple[VisualInput, ...], latents: list) -> list[LayoutCondition]:
    """Descriptors of encoded visuals, latents [1, C, t, h, w], in packed order."""
    return [
        VisualCondition(kind=v.kind, latent_frames=z.shape[2], latent_height=z.shape[3], latent_width=z.shape[4])  # type: ignore[arg-type]
        for v, z in zip(visuals, latents, strict=True)
    ]


def _local(uri: str) -> str:
    """A path on this machine; URLs are for the fetcher."""
    if uri.startswith(("http://", "https://", "data:")):
        raise MediaError(
            f"{uri[:60]} is a URL; keyframes are read from files here", hint="download it first", param="conditions"
        )
    return uri.removeprefix("file://")
