"""Latents <-> rows (tests/parity/test_packing.py). The inverses are exact: only memory order changes."""

from __future__ import annotations

from torch import Tensor


def patchify_video(latents: Tensor, patch_size: tuple[int, int, int]) -> Tensor:
    """[1, C, T, H, W] -> [T * H/ph * W/pw, C * ph * pw]: frames, then blocks row by row; channel slowest in a row."""
    _, channels, frames, height, width = latents.shape
    _, ph, pw = patch_size
    assert latents.shape[0] == 1, tuple(latents.shape)
    assert (height % ph, width % pw) == (0, 0), (tuple(latents.shape), patch_size)
    blocks = latents[0].reshape(channels, frames, height // ph, ph, width // pw, pw)
    return blocks.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * ph * pw)


def unpatchify_video(
    rows: Tensor, latent_frames: int, latent_height: int, latent_width: int, patch_size: tuple[int, int, int]
) -> Tensor:
    """The inverse: [rows, C * ph * pw] -> [1, C, T, H, W], contiguous."""
    _, ph, pw = patch_size
    blocks = rows.reshape(latent_frames, latent_height // ph, latent_width // pw, -1, ph, pw)
    latents = blocks.permute(3, 0, 1, 4, 2, 5)
    return latents.reshape(1, -1, latent_frames, latent_height, latent_width)


def audio_to_rows(latents: Tensor) -> Tensor:
    """[channels, C, Ta] -> [channels * Ta, C], channel-major: every latent of the left channel, then of the right."""
    return latents.transpose(1, 2).reshape(-1, latents.shape[1])


def rows_to_audio(rows: Tensor, num_channels: int = 2) -> Tensor:
    """The inverse: [channels * Ta, C] -> [channels, C, Ta], contiguous."""
    return rows.reshape(num_channels, -1, rows.shape[-1]).transpose(1, 2).contiguous()
