"""How large a request's pictures, videos and sounds will be for the model, from their headers alone. No torch.

The server asks this for uploads that already lie on disk. What cannot be asked (a URL) counts as the largest that the
checkpoint would take, so that a prediction errs towards refusing.
"""

from __future__ import annotations

from dataclasses import dataclass

from talkies.errors import InvalidRequest
from talkies.files.paths import local_path
from talkies.h3.geometry import Geometry, Limits, audio_latents_of, canvas_of_aspect, latent_frames_of
from talkies.request import Condition, VideoRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """Of one condition, as it is encoded. ``num_frames`` is 0 for a sound, ``audio_latents`` (per channel) for none."""

    width: int = 0
    height: int = 0
    num_frames: int = 0
    latent_frames: int = 0
    audio_latents: int = 0

    @property
    def pixels(self) -> int:
        return self.width * self.height * self.num_frames

    def rows(self, limits: Limits) -> int:
        side = limits.spatial_factor * limits.patch_size
        return self.latent_frames * (self.width // side) * (self.height // side) + 2 * self.audio_latents


def extents_of(request: VideoRequest, geometry: Geometry, limits: Limits) -> tuple[Extent, ...]:
    return tuple(_extent(condition, geometry, limits) for condition in request.conditions)


def _extent(condition: Condition, geometry: Geometry, limits: Limits) -> Extent:
    if condition.role != "reference":
        return Extent(width=geometry.width, height=geometry.height, num_frames=1, latent_frames=1)
    path = local_path(condition.uri)
    remote = condition.uri.startswith(("http://", "https://", "data:"))
    try:
        if condition.kind == "image":
            return _picture(1.0 * limits.max_aspect if remote else _image_aspect(path), limits)
        if condition.kind == "audio":
            return Extent(audio_latents=geometry.audio_latents if remote else _sound(path, geometry, limits))
        if not remote:
            return _video(path, condition.start_time_s, geometry, limits)
    except InvalidRequest:
        pass  # it will be refused by name when it is read
    return _largest(geometry, limits)


def _largest(geometry: Geometry, limits: Limits) -> Extent:
    """A reference video of which nothing is known."""
    aspects = [1.0, *(width / height for width, height in limits.named_ratios.values())]
    clips = [_clip(aspect, geometry.num_frames, True, limits) for aspect in aspects]
    return max(clips, key=lambda clip: clip.pixels)


def _image_aspect(path: str) -> float:
    from talkies.media.read.image import probe_image

    _, width, height = probe_image(path)
    return width / height


def _picture(aspect: float, limits: Limits) -> Extent:
    edge, m = limits.reference_image_short_edge, limits.canvas_multiple
    ratio = min(float(limits.max_aspect), max(aspect, 1 / aspect))
    long_side = max(m, round(edge * ratio / m) * m)
    return Extent(width=long_side, height=max(m, round(edge / m) * m), num_frames=1, latent_frames=1)


def _sound(path: str, geometry: Geometry, limits: Limits) -> int:
    from talkies.media.read.probe import probe

    info = probe(path)
    seconds = min(geometry.duration_s, info.audio.duration_s if info.audio else info.duration_s)
    return max(1, round(seconds * limits.audio_latents_per_second))


def _video(path: str, start_s: float, geometry: Geometry, limits: Limits) -> Extent:
    from talkies.media.read.probe import probe

    info = probe(path)
    if info.video is None or not info.video.width or not info.video.height:
        return _largest(geometry, limits)
    frames = round(min(geometry.duration_s, max(0.0, info.video.duration_s - start_s)) * limits.fps)
    return _clip(info.video.width / info.video.height, frames, info.audio is not None, limits)


def _clip(aspect: float, num_frames: int, sound: bool, limits: Limits) -> Extent:
    width, height = canvas_of_aspect(min(limits.max_aspect, max(1 / limits.max_aspect, aspect)), limits)
    clips = max(1, (num_frames - limits.tail_frames) // limits.clip_frames)
    frames = clips * limits.clip_frames + limits.tail_frames  # what the VAE encodes without padding
    return Extent(
        width=width,
        height=height,
        num_frames=max(frames, num_frames),
        latent_frames=latent_frames_of(frames, limits),
        audio_latents=audio_latents_of(frames, limits) if sound else 0,
    )
