"""Integers only: seconds -> frames -> latent frames -> rows, aspect -> canvas, side -> tiles.

Nothing here is a constant of the code: the numbers of one checkpoint are its :class:`Limits`, read from its
configs without loading a weight. The defaults are the released model's values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from talkies.errors import InvalidRequest
from talkies.few_steps import AdapterFacts
from talkies.files.card import Card
from talkies.h3.vision import VisionSizes
from talkies.quality import Tiers
from talkies.values import NAMED_RATIOS


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one checkpoint can make. Units are in the names; every refusal quotes these values."""

    fps: int = 24
    spatial_factor: int = 16  # pixels per latent, each axis (video VAE)
    patch_size: int = 2  # latents per row, each axis (DiT)
    clip_frames: int = 17  # frames of one VAE clip; a legal length is clip_frames * n + tail_frames
    tail_frames: int = 5
    clip_latents: int = 5  # latent frames of one VAE clip; a legal length is clip_latents * n + tail_latents
    tail_latents: int = 2
    canvas_short_edge: int = 768
    canvas_max_pixels: int = 768 * 1344
    max_aspect: int = 4  # width : height between 1:max_aspect and max_aspect:1
    reference_image_short_edge: int = 2048
    min_seconds: float = 4.0
    max_seconds: float = 15.0
    max_frames: int = 362
    default_num_frames: int = 209
    default_num_frames_ref2va: int = 124
    default_num_sigmas: int = 50
    default_aspect: str = "16:9"
    sample_rate_hz: int = 32_000
    audio_hop: int = 800  # samples per audio latent
    max_prompt_chars: int = 7_000
    tasks: tuple[str, ...] = ("t2va", "fl2va")
    vision: VisionSizes = field(default_factory=VisionSizes)  # of what the text encoder sees
    named_ratios: Mapping[str, tuple[int, int]] = field(default_factory=lambda: dict(NAMED_RATIOS))
    card: Card = field(default_factory=Card)  # what it says of itself
    adapters: tuple[AdapterFacts, ...] = ()  # that the operator gave, in the order in which they are applied
    tiers: Tiers = field(default_factory=Tiers)  # of ``quality``

    @property
    def canvas_multiple(self) -> int:
        return self.spatial_factor * self.patch_size

    @property
    def min_frames(self) -> int:
        """Shortest legal length: the snap of ``min_seconds``, never under one VAE clip and its tail."""
        return max(snap_frames(round(self.min_seconds * self.fps), self), self.clip_frames + self.tail_frames)

    @property
    def audio_latents_per_second(self) -> float:
        return self.sample_rate_hz / self.audio_hop


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """The sizes of one clip, all derived from canvas and frame count."""

    width: int
    height: int
    num_frames: int
    fps: int
    latent_frames: int
    latent_height: int
    latent_width: int
    patch_size: int
    audio_latents: int  # per channel
    num_samples: int  # per channel, as the audio latents decode: up to 8.3 ms off the picture's duration
    sample_rate_hz: int

    @property
    def rows_per_frame(self) -> int:
        return (self.latent_height // self.patch_size) * (self.latent_width // self.patch_size)

    @property
    def video_rows(self) -> int:
        return self.latent_frames * self.rows_per_frame

    @property
    def audio_rows(self) -> int:
        return 2 * self.audio_latents

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps

    @property
    def clip_samples(self) -> int:
        """Samples per channel that last as long as the picture, to the nearest one: the clip's sound has these."""
        return round(self.num_frames * self.sample_rate_hz / self.fps)

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


def printed_range(low: float, high: float) -> tuple[str, str]:
    """Both ends with at most three decimals, rounded inwards: each printed number lies inside."""
    inside = math.ceil(low * 1000 - 1e-6) / 1000, math.floor(high * 1000 + 1e-6) / 1000
    first, last = (f"{value:.3f}".rstrip("0").rstrip(".") for value in inside)
    return first, last


def snap_frames(num_frames: int, limits: Limits) -> int:
    """The smallest legal length ``clip_frames * n + tail_frames`` that is at least ``num_frames``."""
    n = max(0, math.ceil((num_frames - limits.tail_frames) / limits.clip_frames))
    return limits.clip_frames * n + limits.tail_frames


def frames_of_seconds(seconds: float, limits: Limits) -> int:
    """``round(seconds * fps)`` (half to even), then snapped up."""
    return snap_frames(round(seconds * limits.fps), limits)


def latent_frames_of(num_frames: int, limits: Limits) -> int:
    """Latent frames of a legal length; raises ``InvalidRequest`` for any other length."""
    n, rest = divmod(num_frames - limits.tail_frames, limits.clip_frames)
    if rest or n < 1:
        legal = snap_frames(num_frames, limits)
        raise InvalidRequest(
            f"num_frames={num_frames} is not {limits.clip_frames}n+{limits.tail_frames} with n >= 1",
            hint=f"use {max(legal, limits.clip_frames + limits.tail_frames)}",
            param="num_frames",
        )
    return limits.clip_latents * n + limits.tail_latents


def encodable_frames(num_frames: int, limits: Limits) -> int:
    """The longest prefix that the video VAE encodes without padding: 17n + 5."""
    return (num_frames - limits.tail_frames) // limits.clip_frames * limits.clip_frames + limits.tail_frames


def audio_latents_of(num_frames: int, limits: Limits) -> int:
    """Audio latents per channel of a clip: ``round(frames / fps * latents per second)``, Python rounding."""
    return round(num_frames / limits.fps * limits.audio_latents_per_second)


def canvas_of_aspect(aspect: float, limits: Limits, *, of_picture: bool = False) -> tuple[int, int]:
    """(width, height) for ``aspect = width / height``: short edge, area cap, nearest multiple (half to even).

    ``of_picture``: a picture gives the ratio, and not a word of the request. Raises ``InvalidRequest`` outside
    ``1:max_aspect .. max_aspect:1``.
    """
    if not (1 / limits.max_aspect <= aspect <= limits.max_aspect):
        raise InvalidRequest(
            f"aspect ratio {aspect:.4g} (width / height) is outside 1:{limits.max_aspect}..{limits.max_aspect}:1",
            hint=("crop the picture, or choose" if of_picture else "choose")
            + " one of "
            + ", ".join(limits.named_ratios),
            param="aspect",
        )
    edge = limits.canvas_short_edge
    width, height = (edge * aspect, float(edge)) if aspect >= 1 else (float(edge), edge / aspect)
    if width * height > limits.canvas_max_pixels:
        scale = math.sqrt(limits.canvas_max_pixels / (width * height))
        width, height = width * scale, height * scale
    m = limits.canvas_multiple
    return max(m, round(width / m) * m), max(m, round(height / m) * m)


def reference_image_size(width: int, height: int, limits: Limits) -> tuple[int, int]:
    """(width, height) of a reference picture of this upright size: the model's short edge (up or down), each side to
    the nearest multiple, ratio kept. The output canvas has no say in it."""
    scale = limits.reference_image_short_edge / min(width, height)
    m = limits.canvas_multiple
    return max(m, round(width * scale / m) * m), max(m, round(height * scale / m) * m)


def check_canvas(width: int, height: int, limits: Limits) -> None:
    """Raises ``InvalidRequest`` for a canvas the checkpoint cannot make."""
    m = limits.canvas_multiple
    for name, value in (("width", width), ("height", height)):
        if value < m:
            raise InvalidRequest(f"{name}={value} is not a positive multiple of {m}", hint=f"use {m}", param=name)
    if not (1 / limits.max_aspect <= width / height <= limits.max_aspect):
        raise InvalidRequest(
            f"size {width}x{height} has a ratio outside 1:{limits.max_aspect}..{limits.max_aspect}:1",
            hint="choose sides closer to each other",
            param="size",
        )
    # Rounding to multiples may take what ``canvas_of_aspect`` gives over the cap: the smallest that becomes it counts.
    slack = 0 if width % m or height % m else m / 2
    if (width - slack) * (height - slack) > limits.canvas_max_pixels:
        cw, ch = canvas_of_aspect(width / height, limits)
        raise InvalidRequest(
            f"size {width}x{height} has {width * height} pixels, over the limit of {limits.canvas_max_pixels}",
            hint=f"the largest canvas of this shape is {cw}x{ch}",
            param="size",
        )
    # Last: the nearest multiple of a side is no way out for a canvas that is too large as a whole.
    for name, value in (("width", width), ("height", height)):
        if value % m:
            below = value // m * m
            hint = f"use {below} or {below + m}"
            raise InvalidRequest(f"{name}={value} is not a positive multiple of {m}", hint=hint, param=name)


def tiles_along(side: int, *, tile: int, min_overlap: int) -> int:
    """The fewest tiles of ``tile`` that cover ``side`` with every overlap at least ``min_overlap``; all in pixels."""
    return 1 if side <= tile else -(-(side - min_overlap) // (tile - min_overlap))


def geometry_of(width: int, height: int, num_frames: int, limits: Limits) -> Geometry:
    """All sizes of a clip. ``width``, ``height`` and ``num_frames`` must be legal (raises ``InvalidRequest``)."""
    check_canvas(width, height, limits)
    audio_latents = audio_latents_of(num_frames, limits)
    return Geometry(
        width=width,
        height=height,
        num_frames=num_frames,
        fps=limits.fps,
        latent_frames=latent_frames_of(num_frames, limits),
        latent_height=height // limits.spatial_factor,
        latent_width=width // limits.spatial_factor,
        patch_size=limits.patch_size,
        audio_latents=audio_latents,
        num_samples=audio_latents * limits.audio_hop,
        sample_rate_hz=limits.sample_rate_hz,
    )
