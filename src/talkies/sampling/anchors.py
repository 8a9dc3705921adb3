"""Condition rows: written once before the loop, pinned bit for bit after every step (tests/parity/test_schedule.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.h3.packing import patchify_video
from talkies.h3.timesteps import VISUAL_CONDITION_T


def noised(clean: Tensor, noise: Tensor) -> Tensor:
    """``0.999 * clean + 0.001 * noise`` in float32: visual conditions are held just short of clean."""
    t = torch.tensor(VISUAL_CONDITION_T, dtype=torch.float32)
    return t * clean.float() + (1.0 - t) * noise


@dataclass(frozen=True, eq=False)
class Anchors:
    """The condition rows of a request, in packed order: video [nv, C * 4] and audio [na, C], float32."""

    video_rows: Tensor
    audio_rows: Tensor

    def assemble(self, video_noise: Tensor, audio_noise: Tensor) -> tuple[Tensor, Tensor]:
        """The first state: condition rows, then noise, for both streams. New tensors."""
        return torch.cat((self.video_rows, video_noise)), torch.cat((self.audio_rows, audio_noise))

    def pin(self, video_rows: Tensor, audio_rows: Tensor) -> None:
        """Writes the condition rows back in place, whatever happened to them."""
        for rows, held in ((video_rows, self.video_rows), (audio_rows, self.audio_rows)):
            if held.shape[0]:
                rows[: held.shape[0]].copy_(held)

    def to(self, device: torch.device) -> Anchors:
        return Anchors(self.video_rows.to(device), self.audio_rows.to(device))


def build_anchors(
    visual_latents: Sequence[Tensor],
    visual_noise: Sequence[Tensor],
    audio_rows: Sequence[Tensor],
    *,
    patch_size: tuple[int, int, int],
    video_row_dim: int,
    audio_channels: int,
) -> Anchors:
    """From clean normalized latents [1, C, t, h, w] with their noise, and clean audio rows [2 * a, C].

    Both lists are in packed order; either may be empty.
    """
    video = [patchify_video(noised(x, n), patch_size) for x, n in zip(visual_latents, visual_noise, strict=True)]
    audio = [rows.float() for rows in audio_rows]
    return Anchors(
        torch.cat(video) if video else torch.empty(0, video_row_dim),
        torch.cat(audio) if audio else torch.empty(0, audio_channels),
    )
