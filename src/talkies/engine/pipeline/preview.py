"""A picture while denoising: the middle latent frame's x0 through a linear map from latents to RGB, as JPEG.

The map is fitted once per checkpoint to its own VAE decoder, by least squares over decoded random latents that do
not change in time, and kept in the cache folder under the model's hash. It is blurry and nearly free: one small
matrix product, where decoding a frame takes the whole ViT.

C latent channels, h w latents.
"""

from __future__ import annotations

import io
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from talkies.codecs.video.vae import VideoVAE
from talkies.engine.pipeline.state import RequestState
from talkies.h3.geometry import Limits
from talkies.h3.packing import unpatchify_video

log = logging.getLogger(__name__)
NUM_CLIPS = 6  # decoded for the fit: alternately rough and smooth, since a trained decoder knows the smooth ones
FIT_SEED = 0
RIDGE = 1e-3
MAX_SIDE = 320  # pixels of a preview
JPEG_QUALITY = 80


@dataclass(frozen=True, eq=False)
class LatentToRGB:
    """``weights`` [C + 1, 3] float32: a normalized latent and a constant -> RGB in 0..1."""

    weights: Tensor

    def __call__(self, latent_Chw: Tensor) -> Tensor:
        """[C, h, w] -> [h, w, 3] in 0..1, clamped."""
        pixels = latent_Chw.float().cpu().permute(1, 2, 0) @ self.weights[:-1] + self.weights[-1]
        return pixels.clamp(0, 1)

    @classmethod
    @torch.inference_mode()
    def fit(cls, video: VideoVAE, limits: Limits) -> LatentToRGB:
        """Decodes ``NUM_CLIPS`` of the shortest clips on a small canvas."""
        generator = torch.Generator().manual_seed(FIT_SEED)
        side = max(8, limits.patch_size)
        channels, frames = video.config.latent_channels, video.config.temporal.min_latents
        inputs, targets = [], []
        for clip in range(NUM_CLIPS):
            latent = torch.randn(1, channels, side, side, generator=generator)
            if clip % 2:
                coarse = torch.randn(1, channels, 3, 3, generator=generator)
                latent = F.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=False)
            still = latent[:, :, None].expand(-1, -1, frames, -1, -1).contiguous()
            decoded = torch.cat([chunk.cpu() for chunk in video.decode(still)]).float().div(255)  # [f, H, W, 3]
            pixels = F.adaptive_avg_pool2d(decoded.mean(0).permute(2, 0, 1)[None], (side, side))
            inputs.append(latent[0].flatten(1).T)
            targets.append(pixels[0].flatten(1).T)
        x = torch.cat(inputs).double()
        y = torch.cat(targets).double()
        x = torch.cat((x, torch.ones(x.shape[0], 1, dtype=x.dtype)), dim=1)
        penalty = RIDGE * x.shape[0] * torch.eye(x.shape[1], dtype=x.dtype)
        penalty[-1, -1] = 0.0  # brightness is not to be shrunk
        return cls(torch.linalg.solve(x.T @ x + penalty, x.T @ y).float())


def load_or_fit(video: VideoVAE, limits: Limits, model_hash: str, cache_dir: Path | None) -> LatentToRGB:
    """The map of this checkpoint; a cache that cannot be read or written costs a fit, never a job."""
    path = None if cache_dir is None else cache_dir / "preview" / f"{model_hash}.safetensors"
    shape = (video.config.latent_channels + 1, 3)
    if path is not None and path.is_file():
        try:
            weights = load_file(path)["weights"]
            if weights.shape == shape and bool(torch.isfinite(weights).all()):
                return LatentToRGB(weights)
        except (SafetensorError, OSError, KeyError) as error:
            log.warning("%s cannot be read, fitting again: %s", path, error)
    fitted = LatentToRGB.fit(video, limits)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}.part")
            save_file({"weights": fitted.weights.contiguous()}, aside)
            os.replace(aside, path)
        except (SafetensorError, OSError) as error:
            log.warning("cannot keep the preview map in %s: %s", path, error)
    return fitted


class Peek:
    """Made before a step, asked after it: the x0 of the middle latent frame that the step worked with.

    The velocity itself is gone by then, but an Euler step is ``x' = r x + (1 - r) x0``, so x0 follows from both ends.
    """

    def __init__(self, state: RequestState) -> None:
        self._step = state.schedule.step(state.step).video
        self._before = self._rows(state).clone()

    @torch.inference_mode()
    def x0(self, state: RequestState) -> Tensor:
        """Normalized latent [C, h, w]."""
        ratio = float(self._step.sigma_next / self._step.sigma)
        rows = (self._rows(state) - ratio * self._before) / (1.0 - ratio)
        g = state.geometry
        patch = (1, g.patch_size, g.patch_size)
        return unpatchify_video(rows, 1, g.latent_height, g.latent_width, patch)[0, :, 0]

    @staticmethod
    def _rows(state: RequestState) -> Tensor:
        g = state.geometry
        start = state.layout.num_condition_video_rows + (g.latent_frames // 2) * g.rows_per_frame
        return state.video_rows[start : start + g.rows_per_frame]


def to_jpeg(pixels_hw3: Tensor, *, width: int, height: int) -> bytes:
    """RGB in 0..1 -> JPEG at the clip's size, or ``MAX_SIDE`` if that is smaller. A NaN becomes black."""
    array = torch.nan_to_num(pixels_hw3).mul(255).round().clamp(0, 255).to(torch.uint8).numpy()
    scale = min(1.0, MAX_SIDE / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array), "RGB").resize(size, Image.Resampling.BICUBIC).save(
        out, "JPEG", quality=JPEG_QUALITY
    )
    return out.getvalue()
