"""The video VAE's decoder: a non-causal ViT over one tile of latents (tests/parity/test_video_vae.py).

B tiles, C latent channels, t h w the tile's latent sizes, S = t*h*w tokens, R register tokens, D width,
N heads of H channels, F FFN inner width.

Precision: block linears and attention run in the module's ``compute_dtype`` (the release: float16, what autocast
casts at every call is cast once here); ``proj_in``, ``proj_out``, norms, layer scales and the residual stream are
float32 always. On a CPU ``compute_dtype`` is float32 and nothing rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talkies.kernels.swiglu.reference import swiglu


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


class ViTDecoder(nn.Module):
    """Latent tiles [B, C, t, h, w] float32 -> pixel tiles [B, 3, t*pt, h*p, w*p] float32, ImageNet-normalized.

    Parameter names are the port's below ``decoder.``, with ``post_quant_conv`` beside them and q, k, v fused.
    """

    def __init__(self, config: ViTDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, kernel_size=1)
        self.proj_in = nn.Linear(config.latent_channels, config.width)
        self.register_tokens = nn.Parameter(torch.zeros(1, config.num_register_tokens, config.width))
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm_out = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.proj_out = nn.Linear(
            config.width, config.out_channels * config.patch_size_t * config.patch_size * config.patch_size
        )

    def tokens_of(self, t: int, h: int, w: int) -> int:
        """Tokens of one tile: its latents, the registers and the zero token."""
        return t * h * w + self.config.num_register_tokens + 1

    def is_low_precision(self, name: str) -> bool:
        """Whether the parameter ``name`` is kept in ``compute_dtype``; all others are float32 islands."""
        return name.startswith("post_quant_conv.") or ".attn." in name or ".ff." in name

    def forward(self, latents: Tensor) -> Tensor:
        z = self.post_quant_conv(latents.to(self.compute_dtype))
        _, _, t, h, w = z.shape
        num_latents = t * h * w
        x_BSD = self.proj_in(z.permute(0, 2, 3, 4, 1).flatten(1, 3).float())
        # The release rounds the projection to the incoming dtype; joining the float32 registers promotes the
        # stream back, so it is float32 that holds 16-bit values here.
        x_BSD = x_BSD.to(self.compute_dtype).float()
        registers = self.register_tokens.expand(x_BSD.shape[0], -1, -1)
        zero = torch.zeros_like(x_BSD[:, :1])
        x_BSD = torch.cat([x_BSD, registers, zero], dim=1)

        cos, sin = self.rotary(t, h, w, z.device)
        for block in self.transformer_blocks:
            x_BSD = block(x_BSD, cos, sin, self.compute_dtype)
        pixels = self.proj_out(self.norm_out(x_BSD[:, :num_latents]))
        return self._unpatchify(pixels, t, h, w)

    def rotary(self, t: int, h: int, w: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [S + R + 1, 1, rope_dim] in ``compute_dtype``.

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
        angles = (2.0 * math.pi * positions[:, :, None] * inv_freq).flatten(1).tile(2).unsqueeze(1)
        return angles.cos().to(self.compute_dtype), angles.sin().to(self.compute_dtype)

    def _unpatchify(self, tokens: Tensor, t: int, h: int, w: int) -> Tensor:
        c, p, pt = self.config.out_channels, self.config.patch_size, self.config.patch_size_t
        pixels = tokens.view(tokens.shape[0], t, h, w, c, pt, p, p).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return pixels.reshape(tokens.shape[0], c, t * pt, h * p, w * p)


class Block(nn.Module):
    """``x += scale1 * attn(norm1 x)``; ``x += scale2 * ffn(norm2 x)``: float32 stream, 16-bit branches."""

    def __init__(self, config: ViTDecoderConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.scale1 = nn.Parameter(torch.zeros(config.width))
        self.norm2 = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.ff = FeedForward(config)
        self.scale2 = nn.Parameter(torch.zeros(config.width))

    def forward(self, x_BSD: Tensor, cos: Tensor, sin: Tensor, compute_dtype: torch.dtype) -> Tensor:
        """Returns a new [B, S, D], float32; the branches run in ``compute_dtype``."""
        x_BSD = x_BSD + self.attn(self.norm1(x_BSD).to(compute_dtype), cos, sin) * self.scale1
        return x_BSD + self.ff(self.norm2(x_BSD).to(compute_dtype)) * self.scale2


class Attention(nn.Module):
    """Full attention over a tile's tokens; q and k RMS-normalized per head without a weight, in float32."""

    def __init__(self, config: ViTDecoderConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.eps = config.num_heads, config.head_dim, config.norm_eps
        self.to_qkv = nn.Linear(config.width, 3 * config.width)
        self.to_out = nn.Linear(config.width, config.width)

    def forward(self, x_BSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns a new [B, S, D]; ``cos`` and ``sin`` are :meth:`ViTDecoder.rotary`'s."""
        q, k, v = self.to_qkv(x_BSD).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)
        q = rotate(self._norm(q), cos, sin).transpose(1, 2)
        k = rotate(self._norm(k), cos, sin).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2))
        return self.to_out(out.transpose(1, 2).flatten(2))

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (self.head_dim,), eps=self.eps).to(x.dtype)


class FeedForward(nn.Module):
    """``out(value * silu(gate))`` with ``up`` = [value; gate] rows, the port's order."""

    def __init__(self, config: ViTDecoderConfig) -> None:
        super().__init__()
        inner = config.width * config.ffn_mult
        self.up = nn.Linear(config.width, 2 * inner)
        self.down = nn.Linear(inner, config.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(swiglu(self.up(x_BSD)))


def rotate(x_BSNH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half over the first ``cos.shape[-1]`` channels; the others pass through."""
    turned, passed = x_BSNH.split([cos.shape[-1], x_BSNH.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    quarter = torch.cat([-second, first], dim=-1)
    return torch.cat([turned * cos + quarter * sin, passed], dim=-1)


def own_key(port_key: str) -> str:
    """The name here of a port key of the decoder (q, k, v excepted: see :func:`gather`)."""
    key = port_key.removeprefix("decoder.")
    for theirs, ours in (
        (".attn.to_out.0.", ".attn.to_out."),
        (".ff.net.0.proj.", ".ff.up."),
        (".ff.net.2.", ".ff.down."),
    ):
        key = key.replace(theirs, ours)
    return key


def gather(port: dict[str, Tensor]) -> dict[str, Tensor]:
    """Port tensors of the decoder -> tensors under our names, q, k and v fused row-wise."""
    ours: dict[str, Tensor] = {}
    for key, tensor in port.items():
        if ".attn.to_q." in key:
            keys = [key.replace(".to_q.", f".to_{name}.") for name in "qkv"]
            if all(k in port for k in keys):
                ours[own_key(key).replace(".to_q.", ".to_qkv.")] = torch.cat([port[k] for k in keys])
        elif ".attn.to_k." not in key and ".attn.to_v." not in key:
            ours[own_key(key)] = tensor
    return ours
