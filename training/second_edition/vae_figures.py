"""What the video VAE leaves of clips that it never saw: PSNR of the first frame, the last one and all, by canvas."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.codecs import video_vae
from training.components import denormalize_pixels, normalize_pixels
from training.second_edition import world

NUM_FRAMES = 56  # the default clip
SEED = 7_000_000  # no seed of training


@torch.no_grad()
def round_trip(vae: nn.Module, canvas: str, num_clips: int, device: str) -> tuple[Tensor, Tensor]:
    """Rendered and decoded clips, uint8 [B, 3, F, H, W], through the latents' means and the engine's tiles."""
    draw = torch.Generator(device).manual_seed(SEED)
    specs = world.sample_specs(num_clips, world.CANVASES[canvas], draw, device)
    clips = world.render(specs, NUM_FRAMES).video_B3FHW
    decoded = []
    for clip in clips.split(2):
        moments = video_vae.encode_tiles(vae, normalize_pixels(clip))
        decoded.append(denormalize_pixels(vae.decode(moments.chunk(2, 1)[0]).sample))
    return tuple((part.clamp(0, 1) * 255).round().byte() for part in (clips, torch.cat(decoded)))


def psnr_db(clips: Tensor, decoded: Tensor) -> Tensor:
    """[B, F] of every frame."""
    error = (clips.float() - decoded.float()).square().mean((1, 3, 4)) / 255**2
    return -10 * error.clamp_min(1e-9).log10()


def measure(
    vae: nn.Module, folder: Path, device: str, num_clips: int = 16, canvases: Sequence[str] = tuple(world.CANVASES)
) -> dict[str, dict[str, float]]:
    """Median and worst of each canvas, printed, and kept as ``vae.json``; three frames of the first canvas' clips as
    ``vae_frames.npz`` (rendered and decoded, to look at)."""
    figures = {}
    for name in canvases:
        clips, decoded = round_trip(vae, name, num_clips, device)
        by_frame = psnr_db(clips, decoded)
        ends = {"first": by_frame[:, 0], "last": by_frame[:, -1], "all": by_frame.mean(1)}
        figures[name] = {f"{end}_median_db": round(v.median().item(), 2) for end, v in ends.items()}
        figures[name] |= {f"{end}_worst_db": round(v.min().item(), 2) for end, v in ends.items()}
        print(f"video_vae {name}", figures[name], flush=True)
        if name == canvases[0]:
            kept = {
                k: v[:, :, [0, NUM_FRAMES // 2, -1]].cpu().numpy() for k, v in zip("ab", (clips, decoded), strict=True)
            }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vae.json").write_text(json.dumps(figures, indent=2) + "\n")
    np.savez_compressed(folder / "vae_frames.npz", rendered=kept["a"], decoded=kept["b"])
    assert all(math.isfinite(v) for row in figures.values() for v in row.values()), figures
    return figures
