"""A picture while denoising: the middle latent frame's x0, held still for one window of the decoder, as JPEG.

It goes through the checkpoint's own decoder, because nothing simpler knows its colours: a linear map from latents to
RGB, fitted to decoded noise or to encoded pictures, paints the embedded checkpoint's red ball yellow on purple. One
window of a picture is a small part of one step; pictures larger than ``DECODED_SIDE`` are thinned to about that.

C latent channels, h w latents.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from talkies.codecs.video.vae import VideoVAE
from talkies.engine.pipeline.state import RequestState
from talkies.h3.packing import unpatchify_video

DECODED_SIDE = 640  # pixels that are decoded along the longer side, about: one batch of the decoder's tiles
MAX_SIDE = 320  # pixels of a preview
JPEG_QUALITY = 80


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


@torch.inference_mode()
def decode_still(video: VideoVAE, latent_Chw: Tensor) -> Tensor:
    """Normalized latent [C, h, w] -> uint8 RGB [H, W, 3] on the CPU: one frame of a clip in which nothing moves.

    Large latents are thinned, not averaged: the mean of two latents stands for a colour that neither has. Raises
    ``NumericsError`` when the picture is not finite.
    """
    step = max(1, round(max(latent_Chw.shape[1:]) * video.config.spatial_factor / DECODED_SIDE))
    thin_Chw = latent_Chw[:, ::step, ::step]
    still = thin_Chw[None, :, None].expand(-1, -1, video.config.temporal.min_latents, -1, -1)
    frames = next(iter(video.decode(still.contiguous())))
    return frames[len(frames) // 2].cpu()


def to_jpeg(pixels_HW3: Tensor, *, width: int, height: int) -> bytes:
    """uint8 RGB -> JPEG of the clip's shape, its longer side ``MAX_SIDE`` or the clip's if that is smaller."""
    scale = min(1.0, MAX_SIDE / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    out = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels_HW3.numpy()), "RGB")
    picture.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()
