"""Initial noise with the reference serving stack's seeding (docs/model.md, Noise and seeds).

Always drawn on CPU in float32, so a seed is a clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.errors import InvalidRequest
from talkies.h3.packing import VisualCondition, patchify_video
from talkies.values import INT64_MAX, INT64_MIN


@dataclass(frozen=True, eq=False)
class Noise:
    """Unit noise of one output: target rows, and a latent-shaped draw for each visual condition."""

    video_rows: Tensor  # [Nv, C * 4]
    audio_rows: Tensor  # [Na, C]
    conditions: tuple[Tensor, ...]  # each [1, C, t, h, w]


def draw(
    seed: int,
    *,
    latent_frames: int,
    latent_height: int,
    latent_width: int,
    audio_latents: int,
    in_channels: int,
    audio_in_channels: int,
    patch_size: tuple[int, int, int],
    visual_conditions: Sequence[VisualCondition] = (),
    num_audio_channels: int = 2,
) -> Noise:
    """The noise of one output. Every tensor restarts its own generator at ``seed``.

    So audio noise is a prefix of the video noise: intended, the model was trained and served with it.
    """
    video = _randn(seed, 1, in_channels, latent_frames, latent_height, latent_width)
    audio = _randn(seed, num_audio_channels * audio_latents, audio_in_channels)
    return Noise(
        patchify_video(video, patch_size),
        audio,
        tuple(_condition(seed, c, in_channels, latent_frames, len(visual_conditions)) for c in visual_conditions),
    )


def _condition(seed: int, c: VisualCondition, channels: int, latent_frames: int, num_visual: int) -> Tensor:
    """Drawn as long as the target and all visual conditions, then cut: not the numbers of a draw of its own length."""
    frames = max(latent_frames + num_visual, c.latent_frames)
    return _randn(seed, 1, channels, frames, c.latent_height, c.latent_width)[:, :, : c.latent_frames]


def external(
    video: Tensor, audio_rows: Tensor, conditions: Sequence[Tensor] = (), *, patch_size: tuple[int, int, int]
) -> Noise:
    """Noise made elsewhere: video [1, C, T, H, W] or rows [Nv, C * 4], audio rows, and one tensor a condition."""
    rows = patchify_video(video, patch_size) if video.ndim == 5 else video
    return Noise(rows.float().cpu(), audio_rows.float().cpu(), tuple(c.float().cpu() for c in conditions))


def _randn(seed: int, *shape: int) -> Tensor:
    if not INT64_MIN <= seed <= INT64_MAX:  # a negative one is its two's complement, as torch takes it
        raise InvalidRequest(f"seed={seed} is out of range", hint=f"use {INT64_MIN}..{INT64_MAX}", param="seed")
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
