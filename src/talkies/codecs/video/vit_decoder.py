"""The video VAE's decoder: a non-causal ViT over tiles of latents, on the kernels that the DiT has, too
(tests/parity/test_video_vae.py).

B tiles, C latent channels, t h w the tile's latent sizes, n = t*h*w latents, S = n + registers + 1 tokens of a tile,
R = B*S rows, D width, N heads of H channels, A rotary angles, F feed-forward inner width.

Precision: block linears and attention run in ``compute_dtype`` (the release: float16, what autocast casts at every
call is cast once here); ``proj_in``, ``proj_out``, norms, layer scales and the residual stream are float32 always. On
a CPU nothing rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from talkies.attention.equal import EqualSequences
from talkies.kernels.runs import RowRuns
from talkies.kernels.select import REFERENCE, Ops

MAX_TABLES = 4  # of a request's tile shape there are two batch sizes at most


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTDecoderConfig:
    """Sizes, all from the VAE's config.json."""

    latent_channels: int
    out_channels: int
    patch_size: int  # pixels per latent, each spatial axis
    patch_size_t: int  # frames per latent frame
    num_layers: int
    num_heads: int
    head_dim: int
    num_register_tokens: int
    ffn_mult: int
    rope_theta: float
    rope_dim_ratio: float
    norm_eps: float

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def rope_dim(self) -> int:
        """Rotated channels of a head: the first ``rope_dim`` ones, a third of them per axis."""
        return int(self.head_dim * self.rope_dim_ratio)

    def __post_init__(self) -> None:
        if self.rope_dim % 6:
            raise ValueError(f"rope dim {self.rope_dim} is not divisible by 6 (three axes, two halves)")


@dataclass(frozen=True, slots=True)
class TileTables:
    """What all blocks need to know of a batch of B equal tiles; made once for a shape."""

    cos_RA: Tensor
    sin_RA: Tensor
    ones_H: Tensor  # queries and keys are normed without a weight
    runs: RowRuns  # all rows have one layer scale
    num_tiles: int


class ViTDecoder(nn.Module):
    """Latent tiles [B, C, t, h, w] float32 -> pixel tiles [B, 3, t*pt, h*p, w*p] float32, ImageNet-normalized.

    Parameter names are the port's below ``decoder.``, with ``post_quant_conv`` beside them and q, k, v fused.
    """

    def __init__(self, config: ViTDecoderConfig, ops: Ops = REFERENCE) -> None:
        super().__init__()
        self.config, self.ops = config, ops
        self.compute_dtype = torch.float32
        self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, kernel_size=1)
        self.proj_in = nn.Linear(config.latent_channels, config.width)
        self.register_tokens = nn.Parameter(torch.zeros(1, config.num_register_tokens, config.width))
        attend = EqualSequences()
        self.transformer_blocks = nn.ModuleList(Block(config, ops, attend) for _ in range(config.num_layers))
        self.norm_out = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.proj_out = nn.Linear(
            config.width, config.out_channels * config.patch_size_t * config.patch_size * config.patch_size
        )
        self._tables: dict[object, TileTables] = {}

    def tokens_of(self, t: int, h: int, w: int) -> int:
        """Tokens of one tile: its latents, the registers and the zero token."""
        return t * h * w + self.config.num_register_tokens + 1

    @property
    def bytes_of_token(self) -> int:
        """Of a token in a block, at most: the stream, its norm, and what the feed-forward makes of them."""
        width, inner = self.config.width, self.config.width * self.config.ffn_mult
        return 4 * width + self.compute_dtype.itemsize * (2 * width + max(4 * width, 3 * inner))

    def dtype_of(self, name: str) -> torch.dtype:
        """What the parameter ``name`` is kept in: ``compute_dtype``, or float32 for an island."""
        low = name.startswith("post_quant_conv.") or ".attn." in name or ".ff." in name
        return self.compute_dtype if low else torch.float32

    def forward(self, latents: Tensor) -> Tensor:
        z = self.post_quant_conv(latents.to(self.compute_dtype))
        num_tiles, _, t, h, w = z.shape
        x_RD = self._embed(z)
        tables = self.tables(num_tiles, t, h, w, z.device)
        h_RD: Tensor | None = None
        for block, following in zip(self.transformer_blocks, [*self.transformer_blocks[1:], None], strict=True):
            # A block whose weights are still in host memory begins by itself: one read more, the same bits.
            near = following is not None and following.norm1.weight.device == x_RD.device
            x_RD, h_RD = block(x_RD, h_RD, tables, self.compute_dtype, following if near else None)
        pixels = self.proj_out(self.norm_out(x_RD.unflatten(0, (num_tiles, -1))[:, : t * h * w]))
        return self._unpatchify(pixels, t, h, w)

    def _embed(self, z: Tensor) -> Tensor:
        """Latents [B, C, t, h, w] -> the stream [R, D]: of each tile its latents, the registers and the zero token."""
        projected = self.proj_in(z.permute(0, 2, 3, 4, 1).flatten(1, 3).float())
        num_latents, num_registers = projected.shape[1], self.config.num_register_tokens
        x_BSD = projected.new_empty(z.shape[0], num_latents + num_registers + 1, self.config.width)
        # The release rounds the projection to the incoming dtype; joining the float32 registers promotes the
        # stream back, so it is float32 that holds 16-bit values here.
        x_BSD[:, :num_latents] = projected.to(self.compute_dtype)
        x_BSD[:, num_latents:-1] = self.register_tokens
        x_BSD[:, -1] = 0.0
        return x_BSD.flatten(0, 1)

    def tables(self, num_tiles: int, t: int, h: int, w: int, device: torch.device) -> TileTables:
        """Of ``num_tiles`` tiles of t x h x w latents; the last few are kept."""
        key = (num_tiles, t, h, w, device, self.compute_dtype)
        if key not in self._tables:
            while len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            cos, sin = (table.repeat(num_tiles, 1) for table in self.rotary(t, h, w, device))
            ones = torch.ones(self.config.head_dim, dtype=self.compute_dtype, device=device)
            self._tables[key] = TileTables(cos, sin, ones, RowRuns.of([(cos.shape[0], 0)]), num_tiles)
        return self._tables[key]

    def rotary(self, t: int, h: int, w: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [S, A] of one tile, in ``compute_dtype``; each angle turns two channels.

        Coordinates are ``2 (i + 0.5) / n - 1`` with n the tile's own size, built in ``compute_dtype`` as under
        autocast; registers and the zero token sit at 0.
        """
        axes = [2.0 * (torch.arange(0.5, n, dtype=self.compute_dtype, device=device) / n) - 1.0 for n in (t, h, w)]
        grid_S3 = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)
        at_zero = grid_S3.new_zeros(self.config.num_register_tokens + 1, 3)
        positions = torch.cat([grid_S3, at_zero]).float()
        inv_freq = 1.0 / self.config.rope_theta ** torch.arange(
            0, 1, 6 / self.config.rope_dim, dtype=torch.float32, device=device
        )
        angles = (2.0 * math.pi * positions[:, :, None] * inv_freq).flatten(1)
        return angles.cos().to(self.compute_dtype), angles.sin().to(self.compute_dtype)

    def _unpatchify(self, tokens: Tensor, t: int, h: int, w: int) -> Tensor:
        c, p, pt = self.config.out_channels, self.config.patch_size, self.config.patch_size_t
        pixels = tokens.view(tokens.shape[0], t, h, w, c, pt, p, p).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return pixels.reshape(tokens.shape[0], c, t * pt, h * p, w * p)


class Block(nn.Module):
    """``x += scale1 * attn(norm1 x)``; ``x += scale2 * ffn(norm2 x)``: float32 stream, 16-bit branches."""

    def __init__(self, config: ViTDecoderConfig, ops: Ops, attend: EqualSequences) -> None:
        super().__init__()
        self.ops = ops
        self.norm1 = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config, ops, attend)
        self.scale1 = nn.Parameter(torch.zeros(config.width))
        self.norm2 = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.ff = FeedForward(config, ops)
        self.scale2 = nn.Parameter(torch.zeros(config.width))

    def forward(
        self,
        x_RD: Tensor,
        h_RD: Tensor | None,
        tables: TileTables,
        dtype: torch.dtype,
        following: Block | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The stream, in the memory of ``x_RD``, and what the block ``following`` begins with, if that is given.

        ``h_RD`` is what the block before made of the stream for this one. Branches are ``dtype``.
        """
        runs, norm = tables.runs, self.norm1
        if h_RD is None:
            h_RD = self.ops.rms_modulate(x_RD, norm.weight, None, None, runs, eps=norm.eps, dtype=dtype)
        branch = self.attn(h_RD, tables)
        x_RD, h_RD = self._join(x_RD, branch, self.scale1, self.norm2, dtype, runs)
        branch = self.ff(h_RD)
        if following is None:
            return self.ops.gate_residual(x_RD, branch, self.scale2[None], runs, out=x_RD), None
        return self._join(x_RD, branch, self.scale2, following.norm1, dtype, runs)

    def _join(
        self, x_RD: Tensor, branch: Tensor, scale_D: Tensor, norm: nn.RMSNorm, dtype: torch.dtype, runs: RowRuns
    ) -> tuple[Tensor, Tensor]:
        """``x += scale * branch``, and its norm in ``dtype``."""
        joined: tuple[Tensor, Tensor] = self.ops.gate_residual_norm(
            x_RD, branch, scale_D[None], norm.weight, None, None, runs, eps=norm.eps, dtype=dtype, out=x_RD
        )
        return joined


class Attention(nn.Module):
    """Full attention over a tile's tokens; q and k RMS-normalized per head without a weight, in float32."""

    def __init__(self, config: ViTDecoderConfig, ops: Ops, attend: EqualSequences) -> None:
        super().__init__()
        self.ops, self.attend = ops, attend
        self.head_dim, self.eps = config.head_dim, config.norm_eps
        self.to_qkv = nn.Linear(config.width, 3 * config.width)
        self.to_out = nn.Linear(config.width, config.width)

    def forward(self, h_RD: Tensor, tables: TileTables) -> Tensor:
        """Returns a new [R, D]."""
        qkv_R3NH = self.to_qkv(h_RD).view(h_RD.shape[0], 3, -1, self.head_dim)
        one = tables.ones_H
        qkv = self.ops.qk_norm_rope(qkv_R3NH, one, one, tables.cos_RA, tables.sin_RA, eps=self.eps)
        out_BSNH = self.attend(*(x.unflatten(0, (tables.num_tiles, -1)) for x in qkv))
        del qkv, qkv_R3NH  # the largest tensor of attention is not needed for the next product
        return self.to_out(out_BSNH.flatten(0, 1).flatten(1))


class FeedForward(nn.Module):
    """``out(value * silu(gate))`` with ``up`` = [value; gate] rows, the port's order."""

    def __init__(self, config: ViTDecoderConfig, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        inner = config.width * config.ffn_mult
        self.up = nn.Linear(config.width, 2 * inner)
        self.down = nn.Linear(inner, config.width)

    def forward(self, h_RD: Tensor) -> Tensor:
        """Returns a new [R, D]."""
        return self.down(self.ops.swiglu(self.up(h_RD)))
