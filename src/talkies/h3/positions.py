"""Coordinates (t, h, w) of the packed rows, in float64 (docs/model.md, Positions).

The numbers must equal the reference's to the last bit, so the order of the additions is part of the rule.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor

FRAME_SPANS = (1, 4, 4, 4, 4)  # video frames under each latent frame of a VAE clip
UNITS_PER_FRAME = 5.0 / 3.0  # one audio latent is one unit: 40 a second = 24 fps * 5/3
SPATIAL_SCALE = 32


def frame_spans(latent_frames: int) -> list[float]:
    """Time units that each latent frame takes."""
    return [UNITS_PER_FRAME * FRAME_SPANS[i % len(FRAME_SPANS)] for i in range(latent_frames)]


def running_span(latent_frames: int) -> float:
    """Length of a video block on the reference clock, added left to right.

    Not the built-in ``sum``: from Python 3.12 on it compensates rounding.
    """
    total = 0.0
    for span in frame_spans(latent_frames):
        total += span
    return total


def pairwise_span(latent_frames: int) -> float:
    """The same length as the keyframe clock takes it: numpy's pairwise sum, one bit off from 16 frames on."""
    return float(np.array(frame_spans(latent_frames)).sum())


def frame_times(latent_frames: int, origin: float) -> Tensor:
    """Time of each latent frame, float64 [T]."""
    spans = np.array(frame_spans(latent_frames))
    offsets = np.concatenate((np.zeros(1), np.cumsum(spans[:-1])))
    return torch.from_numpy(origin + offsets)


def axis(size: int, patch: int, area: int) -> np.ndarray:
    """One spatial axis: ``size // patch`` coordinates around 16, float64; ``area`` is latent height x width."""
    ratio = size / sqrt(area)
    left = (1.0 - ratio) / 2.0
    return np.linspace(left, left + ratio, size // patch, endpoint=False) * SPATIAL_SCALE


class Grid:
    """The spatial grid of one visual block: ``hw_R2`` for a frame's R rows, and the ends of its width axis."""

    def __init__(self, latent_height: int, latent_width: int, patch_size: tuple[int, int, int]) -> None:
        area = latent_height * latent_width
        height = axis(latent_height, patch_size[1], area)
        width = axis(latent_width, patch_size[2], area)
        h, w = np.meshgrid(height, width, indexing="ij")
        self.hw_R2 = torch.from_numpy(np.stack((h.ravel(), w.ravel()), axis=-1))
        self.left, self.right = float(width[0]), float(width[-1])

    @property
    def rows_per_frame(self) -> int:
        return self.hw_R2.shape[0]

    def video(self, times_T: Tensor) -> Tensor:
        """Positions of a video block, [T * R, 3], frame by frame."""
        times = times_T.repeat_interleave(self.rows_per_frame)[:, None]
        return torch.cat((times, self.hw_R2.repeat(times_T.shape[0], 1)), dim=1)

    def audio(self, audio_latents: int, origin: float, num_channels: int) -> Tensor:
        """Positions of a channel-major audio block, [channels * Ta, 3]: left end of the width axis, then right."""
        positions = torch.zeros(num_channels, audio_latents, 3, dtype=torch.float64)
        positions[..., 0] = origin + torch.arange(audio_latents, dtype=torch.float64)
        positions[0, :, 2] = self.left
        positions[1:, :, 2] = self.right
        return positions.flatten(0, 1)


def text(num_text: int) -> Tensor:
    """Positions of text rows, [L, 3]: their index on the time axis; the media clock starts at L."""
    positions = torch.zeros(num_text, 3, dtype=torch.float64)
    positions[:, 0] = torch.arange(num_text, dtype=torch.float64)
    return positions
