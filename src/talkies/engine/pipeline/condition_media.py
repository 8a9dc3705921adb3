"""A request's conditions -> sized arrays: what the VAEs encode and the text encoder sees.

How they are sized and cut: docs/model.md, Keyframes and references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from talkies.errors import MediaError
from talkies.files.paths import local_path
from talkies.h3.geometry import Geometry, Limits, encodable_frames
from talkies.media.fetch.uri import FetchPolicy, fetch
from talkies.media.read.limits import MediaLimits, ReferenceTotals, check_audio, check_image, check_video
from talkies.media.read.readers import read_audio, read_image, read_video
from talkies.media.read.resize import reference_video_size, resize_reference_image
from talkies.request import Condition, VideoRequest

REMOTE = ("http", "https", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaAccess:
    """Where media may come from, and how large it may be.

    The default is a user at their own machine: any local path, the public internet, loose limits. A server forbids
    plain paths that clients name, before a request gets here.
    """

    policy: FetchPolicy = field(default_factory=FetchPolicy)
    local_paths: bool = True
    limits: MediaLimits = field(default_factory=MediaLimits.loose)
    alive: Callable[[], object] = lambda: None  # called before each file: a supervisor counts signs of life


@dataclass(frozen=True, kw_only=True, eq=False)
class VisualInput:
    """``frames`` uint8 [F, H, W, 3] are VAE-encoded; ``wave`` float32 [2, N] is a video's soundtrack."""

    kind: str  # as in model.conditions.VisualCondition
    frames: np.ndarray
    wave: np.ndarray | None = None
    used: dict[str, Any] = field(default_factory=dict)  # what became of the file, for the user


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundInput:
    """A standalone sound: float32 [2, N] at the audio VAE's rate."""

    wave: np.ndarray
    used: dict[str, Any] = field(default_factory=dict)


MediaInput = VisualInput | SoundInput


def source_of(condition: Condition, access: MediaAccess, name: str) -> str | bytes:
    """A path that may be opened here, or the fetched bytes."""
    scheme = condition.uri.split(":", 1)[0].lower() if ":" in condition.uri[:16] else ""
    limit = {
        "image": access.limits.image_max_bytes,
        "video": access.limits.video_max_bytes,
        "audio": access.limits.audio_max_bytes,
    }[condition.kind]
    if scheme in REMOTE or (scheme == "file" and access.policy.media_root is not None):
        return fetch(condition.uri, access.policy, kind=condition.kind, max_bytes=limit, name=name)
    if not access.local_paths:
        raise MediaError(f"{name} must be an http(s) URL, a data URL or an upload", param="conditions")
    return local_path(condition.uri)


def load_keyframe(condition: Condition, access: MediaAccess) -> np.ndarray:
    """Upright uint8 [H, W, 3], not yet fitted to the canvas."""
    access.alive()
    name = f"{condition.role} frame"
    source = source_of(condition, access, name)
    shown = name if isinstance(source, bytes) else f"{name} {source}"
    check_image(source, access.limits, name=shown)
    return read_image(source, name=shown)


def load_reference(
    condition: Condition, index: int, geometry: Geometry, limits: Limits, access: MediaAccess, totals: ReferenceTotals
) -> tuple[MediaInput, list[str]]:
    """One reference, decoded and sized, with notes for the user. Nothing is replaced by silence or black."""
    access.alive()
    name = f"reference {index + 1} ({condition.kind})"
    used: dict[str, Any]
    source = source_of(condition, access, name)
    shown = name if isinstance(source, bytes) else f"{name} {source}"
    if condition.kind == "image":
        check_image(source, access.limits, name=shown, totals=totals)
        upright = read_image(source, name=shown)
        picture = resize_reference_image(upright, limits, name=shown)
        used = {"kind": "image", "role": "reference", "source_size": _size(upright), "size": _size(picture)}
        return VisualInput(kind="image", frames=picture[None], used=used), []
    if condition.kind == "audio":
        heard = check_audio(source, access.limits, name=shown, totals=totals).audio
        notes: list[str] = []
        wave = read_audio(
            source,
            max_seconds=geometry.duration_s,
            sample_rate_hz=limits.sample_rate_hz,
            name=shown,
            notes=notes,
        )
        used = {
            "kind": "audio",
            "role": "reference",
            "source_sample_rate_hz": heard.sample_rate_hz if heard else None,
            "sample_rate_hz": limits.sample_rate_hz,
            "seconds": round(wave.shape[1] / limits.sample_rate_hz, 3),
        }
        return SoundInput(wave=wave, used=used), [f"{name}: {note}" for note in notes]
    seen = check_video(source, access.limits, name=shown, start_time_s=condition.start_time_s, totals=totals).video
    clip = read_video(
        source,
        fps=limits.fps,
        max_seconds=geometry.duration_s,
        start_time_s=condition.start_time_s,
        size_of=lambda w, h: reference_video_size(w, h, limits),
        sample_rate_hz=limits.sample_rate_hz,
        name=shown,
    )
    if clip.audio is None and condition.require_sound:
        raise MediaError(
            f"{shown} has no sound, but video_audio asks for it",
            hint="use the condition type video, which works without a soundtrack",
            param="conditions",
        )
    frames = clip.frames[: geometry.num_frames]
    shortest = limits.clip_frames + limits.tail_frames
    if frames.shape[0] < shortest:
        raise MediaError(
            f"{shown} has {frames.shape[0]} frames at {limits.fps} fps, under the {shortest} that can be encoded",
            hint=f"use a video of at least {shortest / limits.fps:.2f} seconds",
            param="conditions",
        )
    num_used = encodable_frames(frames.shape[0], limits)
    used = {
        "kind": "video",
        "role": "reference",
        "source_size": f"{seen.width}x{seen.height}" if seen else None,
        "size": _size(frames[0]),
        "source_fps": round(seen.fps, 3) if seen else None,
        "fps": limits.fps,
        "start_time_seconds": condition.start_time_s,
        "seconds": round(num_used / limits.fps, 3),
        "frames": num_used,
        "sound": clip.audio is not None,
    }
    return VisualInput(kind="video", frames=frames, wave=clip.audio, used=used), [
        f"{name}: {note}" for note in clip.notes
    ]


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]}x{picture.shape[0]}"


def check_media_root(request: VideoRequest, root: Path | None) -> None:
    """Files that a request names must lie below ``root``; ``None`` allows all (in-process use).

    Raises ``MediaError``. URLs and data: are the fetcher's affair.
    """
    if root is None:
        return
    for condition in request.conditions:
        if condition.uri.startswith(("http://", "https://", "data:")):
            continue
        path = Path(local_path(condition.uri))
        if not path.resolve().is_relative_to(root.resolve()):  # links are followed before they are judged
            raise MediaError(f"{condition.uri} is outside the folder for media", param="conditions")
