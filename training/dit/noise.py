"""What a training step draws: noise as the reference's seeding makes it, and the times of both modalities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.components import AUDIO_CHANNELS
from training.dit import batched

MAX_VIDEO_SHIFT, MAX_AUDIO_SHIFT = 16.0, 8.0


def draw_noise(layout: batched.Layout, num_channels: int, batch_size: int, device: str) -> tuple[Tensor, Tensor]:
    """(video rows, audio rows). In half of the samples the audio noise is the start of the video noise."""
    height, width = layout.latent_size
    frames = batched.num_latent_frames(layout.num_frames)
    video = torch.randn(batch_size, num_channels, frames, height, width, device=device)
    audio = torch.randn(batch_size, layout.num_audio_rows, AUDIO_CHANNELS, device=device)
    prefix = video.flatten(1)[:, : layout.num_audio_rows * AUDIO_CHANNELS].view_as(audio)
    shared = torch.rand(batch_size, 1, 1, device=device) < 0.5
    return batched.patchify(video), torch.where(shared, prefix, audio)


def draw_timesteps(batch_size: int, device: str) -> tuple[Tensor, Tensor]:
    """(video t, audio t), [B] each; t = 1 - sigma."""

    def uniform() -> Tensor:
        return torch.rand(batch_size, device=device)

    base_video = uniform()
    base_audio = torch.where(uniform() < 0.25, uniform(), base_video)
    times = []
    for base, max_shift in ((base_video, MAX_VIDEO_SHIFT), (base_audio, MAX_AUDIO_SHIFT)):
        shift = torch.exp(uniform() * math.log(max_shift))
        times.append(1 - shift * base / (1 + (shift - 1) * base))
    return times[0], times[1]
