"""The stock MiniMaxH3Transformer3DModel, run for training: per-sample timesteps and flash attention over a batch.

The stock forward shares one set of timesteps over its batch. Here a batch has one canvas, one frame count, one set of
keyframes and one text length, so its rows need no padding and no mask. Equal to the stock forward on the stock layout
(tests/training/test_text_and_dit.py).

B samples, L text rows, K keyframes, R rows per latent frame, T latent frames, Ta audio latents per channel,
S = L + K*R + 2*Ta + T*R rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.components import AUDIO_CHANNELS, PATCH
from training.world import Canvas, num_audio_latents

# columns of a sample's modulation table
VIDEO_AT_TV, TEXT_AT_TV, AUDIO_AT_TA, VIDEO_AT_ANCHOR, AUDIO_AT_ONE = range(5)
ANCHOR_T = 0.999
NUM_SLOTS = 8  # five are used; a product over eight is aligned for tensor cores
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)


def num_latent_frames(num_frames: int) -> int:
    return (num_frames - 5) // 17 * 5 + 2


@dataclass(frozen=True)
class Layout:
    """What all samples of a batch share. `text_is_vision` marks the rows of vision blocks in the text segment."""

    canvas: Canvas
    num_frames: int
    keyframes: tuple[str, ...]
    text_is_vision: tuple[bool, ...]

    @property
    def num_text_rows(self) -> int:
        return len(self.text_is_vision)

    @property
    def latent_size(self) -> tuple[int, int]:
        return self.canvas.height // self.canvas.latent_px, self.canvas.width // self.canvas.latent_px

    @property
    def rows_per_frame(self) -> int:
        height, width = self.latent_size
        return height * width // PATCH**2

    @property
    def num_video_rows(self) -> int:
        return num_latent_frames(self.num_frames) * self.rows_per_frame

    @property
    def num_audio_rows(self) -> int:
        return 2 * num_audio_latents(self.num_frames)

    @property
    def num_condition_rows(self) -> int:
        return len(self.keyframes) * self.rows_per_frame

    @property
    def num_rows(self) -> int:
        return self.num_text_rows + self.num_condition_rows + self.num_audio_rows + self.num_video_rows

    def slots(self) -> Tensor:
        """[S] index into the modulation table of every row."""
        text = torch.where(torch.tensor(self.text_is_vision, dtype=torch.bool), VIDEO_AT_TV, TEXT_AT_TV)
        parts = [text.long()]
        for slot, count in (
            (VIDEO_AT_ANCHOR, self.num_condition_rows),
            (AUDIO_AT_TA, self.num_audio_rows),
            (VIDEO_AT_TV, self.num_video_rows),
        ):
            parts.append(torch.full((count,), slot))
        return torch.cat(parts)

    def positions(self) -> Tensor:
        """[S, 3] (t, h, w) in float64."""
        height, width = self.latent_size
        root = np.sqrt(height * width)
        axes = []
        for size in (height, width):
            ratio = size / root
            left = (1 - ratio) / 2
            axes.append(torch.from_numpy(np.linspace(left, left + ratio, size // PATCH, endpoint=False)) * 32)
        grid = torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*axes, indexing="ij")], -1)
        spans = torch.tensor([5 / 3 * FRAMES_PER_LATENT[i % 5] for i in range(num_latent_frames(self.num_frames))])
        spans = spans.double()
        origin = float(self.num_text_rows)
        text = torch.zeros(self.num_text_rows, 3, dtype=torch.float64)
        text[:, 0] = torch.arange(self.num_text_rows)
        parts = [text]
        for keyframe in self.keyframes:
            block = torch.zeros(self.rows_per_frame, 3, dtype=torch.float64)
            block[:, 0] = origin if keyframe == "first" else origin + spans.sum() - 5 / 3
            block[:, 1:] = grid
            parts.append(block)
        latents = num_audio_latents(self.num_frames)
        audio = torch.zeros(2 * latents, 3, dtype=torch.float64)
        audio[:, 0] = origin + torch.arange(latents).repeat(2)
        audio[:latents, 2], audio[latents:, 2] = axes[1][0], axes[1][-1]
        parts.append(audio)
        times = origin + torch.cat([torch.zeros(1, dtype=torch.float64), spans[:-1].cumsum(0)])
        video = torch.zeros(len(times), self.rows_per_frame, 3, dtype=torch.float64)
        video[:, :, 0], video[:, :, 1:] = times[:, None], grid
        parts.append(video.flatten(0, 1))
        return torch.cat(parts)


@dataclass(frozen=True)
class PlacedLayout:
    """A layout's tables on the device: rotary cosines and sines [S, 1, 30], one-hot slots [S, 8]."""

    layout: Layout
    cos: Tensor
    sin: Tensor
    onehot_S8: Tensor


def place(layout: Layout, inv_freq: Tensor, dtype: torch.dtype) -> PlacedLayout:
    return _tables(layout, layout.positions().to(inv_freq.device), layout.slots().to(inv_freq.device), inv_freq, dtype)


def _tables(
    layout: Layout, positions_S3: Tensor, slots_S: Tensor, inv_freq: Tensor, dtype: torch.dtype
) -> PlacedLayout:
    angles = (positions_S3.float()[..., None] * inv_freq).flatten(1)
    angles = torch.cat([angles, angles], -1)[:, None]
    onehot = (slots_S[:, None] == torch.arange(NUM_SLOTS, device=slots_S.device)).to(dtype)
    return PlacedLayout(layout, angles.cos().to(dtype), angles.sin().to(dtype), onehot)


class Placer:
    """Places layouts that differ in their prompt length alone without a copy to the device, which would wait for it.

    The media rows move along the time axis with the text length; their tables are made once for prompts of length 0.
    """

    def __init__(self, inv_freq: Tensor, dtype: torch.dtype) -> None:
        self.inv_freq, self.dtype = inv_freq, dtype
        self._without_prompt: dict[Layout, tuple[Tensor, Tensor]] = {}

    def __call__(self, base: Layout, num_prompt_tokens: int) -> PlacedLayout:
        """`base` holds the presentation in front of the prompt; the result has `num_prompt_tokens` text rows more."""
        device = self.inv_freq.device
        if base not in self._without_prompt:
            self._without_prompt[base] = base.positions().to(device), base.slots().to(device)
        positions, slots = self._without_prompt[base]
        prefix = base.num_text_rows
        text = torch.zeros(num_prompt_tokens, 3, dtype=torch.float64, device=device)
        text[:, 0] = torch.arange(prefix, prefix + num_prompt_tokens, device=device)
        media = positions[prefix:].clone()
        media[:, 0] += num_prompt_tokens
        prompt = torch.full((num_prompt_tokens,), TEXT_AT_TV, device=device)
        is_vision = base.text_is_vision + (False,) * num_prompt_tokens
        layout = replace(base, text_is_vision=is_vision)
        return _tables(
            layout,
            torch.cat([positions[:prefix], text, media]),
            torch.cat([slots[:prefix], prompt, slots[prefix:]]),
            self.inv_freq,
            self.dtype,
        )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, S, N, H]; the leading channels turn, the rest passes."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-b, a], -1) * sin, rest], -1)


def _attend(attn: nn.Module, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    q, k, v = (linear(x).unflatten(-1, (attn.heads, -1)) for linear in (attn.to_q, attn.to_k, attn.to_v))
    q, k = attn.norm_q(q).to(v.dtype), attn.norm_k(k).to(v.dtype)
    if rotary is not None:
        q, k = _rotate(q, *rotary), _rotate(k, *rotary)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return attn.to_out[0](out.transpose(1, 2).flatten(2))


def run_block(block: nn.Module, x: Tensor, modulation_BSM: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One block; `modulation_BSM` is [B, S, 6 D]."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = modulation_BSM.chunk(6, -1)
    x = x + gate_a * _attend(block.attn, block.norm1(x) * (1 + scale_a) + shift_a, (cos, sin))
    return x + gate_f * block.ff(block.norm2(x) * (1 + scale_f) + shift_f)


def refine_text(model: nn.Module, text_BLC: Tensor) -> Tensor:
    x = model.context_embedder(text_BLC)
    for block in model.token_refiner.refiner_blocks:
        x = x + _attend(block.attn, block.norm1(x), None)
        x = x + block.ff(block.norm2(x))
    return model.token_refiner.final_norm(x)


def forward(
    model: nn.Module,
    placed: PlacedLayout,
    text_BLC: Tensor,
    condition_rows: Tensor | Sequence[Tensor],
    audio_rows: Tensor,
    video_rows: Tensor,
    video_t: Tensor,
    audio_t: Tensor,
    block_fn: Callable = run_block,
) -> tuple[Tensor, Tensor]:
    """Velocities (video [B, T*R, 64], audio [B, 2*Ta, 16]) in float32; the timesteps are [B].

    `condition_rows` are the rows between text and target audio: one tensor, or blocks of video and audio rows in order.
    """
    layout = placed.layout
    text = refine_text(model, text_BLC)
    conditions = [condition_rows] if isinstance(condition_rows, Tensor) else condition_rows
    parts = [
        model.audio_proj_in(rows) if rows.shape[-1] == AUDIO_CHANNELS else model.proj_in(rows)
        for rows in (*conditions, audio_rows, video_rows)
    ]
    x = torch.cat([text, *(part.to(text.dtype) for part in parts)], 1)
    times = torch.stack([video_t, audio_t, video_t.clamp(min=ANCHOR_T), torch.ones_like(audio_t)], 1)
    embedded = model.time_embedder(model.time_proj(times.flatten())).unflatten(0, times.shape)
    embedded = F.silu(embedded)
    for block in model.transformer_blocks:
        # [B, 4 times, 3 modalities, 6 D]; modality 0 video, 1 text, 2 audio
        table = block.adaln_proj.linear(embedded).unflatten(-1, (3, -1))
        used = torch.stack([table[:, 0, 0], table[:, 0, 1], table[:, 1, 2], table[:, 2, 0], table[:, 3, 2]], 1)
        used = F.pad(used, (0, 0, 0, NUM_SLOTS - used.shape[1]))
        x = block_fn(block, x, placed.onehot_S8.to(used.dtype) @ used, placed.cos, placed.sin)
    shift, scale = model.norm_out.linear(embedded).chunk(2, -1)
    x = model.norm_out.norm(x[:, layout.num_text_rows + layout.num_condition_rows :])
    audio, video = x.split([layout.num_audio_rows, layout.num_video_rows], 1)
    audio = audio * (1 + scale[:, 1:2]) + shift[:, 1:2]
    video = video * (1 + scale[:, 0:1]) + shift[:, 0:1]
    with torch.autocast(x.device.type, enabled=False):
        return model.proj_out(video.float()), model.audio_proj_out(audio.float())


def patchify(latents_BCTHW: Tensor) -> Tensor:
    """[B, C, T, H, W] -> rows [B, T*R, 4 C], channel slowest."""
    b, c, t, h, w = latents_BCTHW.shape
    x = latents_BCTHW.reshape(b, c, t, h // PATCH, PATCH, w // PATCH, PATCH)
    return x.permute(0, 2, 3, 5, 1, 4, 6).reshape(b, t * h * w // PATCH**2, c * PATCH**2)


def unpatchify(rows: Tensor, latent_size: tuple[int, int]) -> Tensor:
    """The inverse of `patchify`."""
    h, w = latent_size
    b, n, _ = rows.shape
    t = n * PATCH**2 // (h * w)
    x = rows.reshape(b, t, h // PATCH, w // PATCH, -1, PATCH, PATCH)
    return x.permute(0, 4, 1, 2, 5, 3, 6).reshape(b, -1, t, h, w)
