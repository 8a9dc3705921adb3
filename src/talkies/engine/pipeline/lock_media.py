"""Locks: a sound or a video that becomes the clip's own, read and sized.

What a request leaves free follows them: the length is the longest legal one that they cover, the canvas has the ratio
of the footage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from talkies.engine.pipeline.condition_media import MediaAccess, source_of
from talkies.engine.pipeline.given import Given, Mode
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Geometry, Limits
from talkies.h3.locks import LockPlan, check_covers, longest_s, plan_lock, with_target_of_locks
from talkies.media.read.limits import check_audio, check_video
from talkies.media.read.readers import read_audio, read_video
from talkies.media.read.resize import kept_size, on_canvas, resolved_fit, scaled_size
from talkies.request import Condition, VideoRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadLock:
    """A lock's file, read; longer than the clip perhaps."""

    condition: Condition
    media: np.ndarray
    seconds: float
    used: dict[str, Any]


def read_locks(
    request: VideoRequest, limits: Limits, access: MediaAccess
) -> tuple[VideoRequest, list[ReadLock], list[str]]:
    """The request with what it left free said by its locks, their files, and notes for the user."""
    if not request.locks:
        return request, [], []
    plan(request, limits, auto_aspect=1.0)  # what is wrong with the request itself is refused before any file is opened
    locks: list[ReadLock] = []
    notes: list[str] = []
    for condition in request.locks:
        access.alive()
        if condition.role == "soundtrack":
            locks.append(_read_soundtrack(condition, request, limits, access, notes))
        else:
            request, lock = _read_footage(condition, request, limits, access, notes)
            locks.append(lock)
    seconds = min(lock.seconds for lock in locks)
    return with_target_of_locks(request, limits, seconds=seconds), locks, notes


def given_on(locks: Sequence[ReadLock], geometry: Geometry, limits: Limits) -> tuple[tuple[Given, ...], list[str]]:
    """The locks on a clip of ``geometry``, and notes for the user.

    Raises ``InvalidRequest`` for a file or a window that does not fit it.
    """
    given: list[Given] = []
    notes: list[str] = []
    for lock in locks:
        check_covers(lock.condition.role, lock.seconds, geometry, limits)
        planned = plan_lock(lock.condition, geometry, limits)
        media = lock.media
        if planned.role == "soundtrack":
            lacking = max(0, planned.num_given - media.shape[1])
            if lacking:
                seconds = lacking / geometry.sample_rate_hz
                notes.append(f"the soundtrack ends {seconds:.3f} s before the clip, which is silent from there on")
            media = np.pad(media[:, : planned.num_given], ((0, 0), (0, lacking)))
        else:
            media = media[: planned.num_given]
        mode: Mode = "trained" if planned.role in limits.card.locks else "training-free"
        if mode == "training-free":
            notes.append(
                f"{planned.role}: this checkpoint was not trained to follow it, so what is made may not fit it"
            )
        used = {**lock.used, "mode": mode, "made_anew": _made_anew(planned, geometry)}
        given.append(Given(plan=planned, media=media, mode=mode, used=used, sample_rate_hz=geometry.sample_rate_hz))
    return tuple(given), notes


def _made_anew(planned: LockPlan, geometry: Geometry) -> list[float] | None:
    """From and to, in seconds of the clip."""
    if planned.keeps_all:
        return None
    rate = geometry.sample_rate_hz if planned.role == "soundtrack" else geometry.fps
    return [round(place / rate, 3) for place in planned.made]


def _read_soundtrack(
    condition: Condition, request: VideoRequest, limits: Limits, access: MediaAccess, notes: list[str]
) -> ReadLock:
    source = source_of(condition, access, "soundtrack")
    shown = "soundtrack" if isinstance(source, bytes) else f"soundtrack {source}"
    heard = check_audio(source, access.limits, name=shown, longer_is_cut=True).audio
    own: list[str] = []
    wave = read_audio(
        source,
        max_seconds=longest_s(request, limits),
        sample_rate_hz=limits.sample_rate_hz,
        name=shown,
        notes=own,
    )
    notes += [f"soundtrack: {note}" for note in own]
    seconds = wave.shape[1] / limits.sample_rate_hz
    used = {
        "kind": "audio",
        "role": "soundtrack",
        "source_sample_rate_hz": heard.sample_rate_hz if heard else None,
        "sample_rate_hz": limits.sample_rate_hz,
        "seconds": round(seconds, 3),
    }
    return ReadLock(condition=condition, media=wave, seconds=seconds, used=used)


def _read_footage(
    condition: Condition, request: VideoRequest, limits: Limits, access: MediaAccess, notes: list[str]
) -> tuple[VideoRequest, ReadLock]:
    """The request with the canvas, and the frames on it."""
    source = source_of(condition, access, "footage")
    shown = "footage" if isinstance(source, bytes) else f"footage {source}"
    seen = check_video(source, access.limits, name=shown, longer_is_cut=True)
    found: dict[tuple[int, int], tuple[VideoRequest, Geometry, str]] = {}  # by the upright size of the first frame

    def size_of(width: int, height: int) -> tuple[int, int]:
        followed = with_target_of_locks(request, limits, aspect=width / height)
        geometry = plan(followed, limits)
        fit = request.fit if request.fit != "auto" else "crop" if followed is request else "adapt"
        fit = resolved_fit(fit, 0)
        found[width, height] = followed, geometry, fit
        return scaled_size(width, height, canvas=(geometry.width, geometry.height), fit=fit)

    clip = read_video(
        source, fps=limits.fps, max_seconds=longest_s(request, limits), size_of=size_of, with_audio=False, name=shown
    )
    ((size, (followed, geometry, fit)),) = found.items()
    canvas = geometry.width, geometry.height
    frames = clip.frames
    if frames.shape[1:3] != canvas[::-1]:
        frames = np.stack([on_canvas(frame, width=canvas[0], height=canvas[1]) for frame in frames])
    notes += [f"footage: {note}" for note in clip.notes]
    if seen.audio is not None and not any(c.role == "soundtrack" for c in request.conditions):
        notes.append("footage: its sound is not used; give the same file as soundtrack, too, to keep it")
    seconds = frames.shape[0] / limits.fps
    used = {
        "kind": "video",
        "role": "footage",
        "source_size": f"{size[0]}x{size[1]}",
        "size": geometry.size,
        "fit": fit,
        "kept": "x".join(map(str, kept_size(*size, canvas=canvas, fit=fit))),
        "source_fps": round(seen.video.fps, 3) if seen.video else None,
        "fps": limits.fps,
        "seconds": round(seconds, 3),
        "frames": frames.shape[0],
    }
    return followed, ReadLock(condition=condition, media=frames, seconds=seconds, used=used)
