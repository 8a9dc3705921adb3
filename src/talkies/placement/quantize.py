"""Weights to e4m3 while they are loaded: a linear at a time, so that loading needs the finished size and one block.

Of the DiT the four products of a block; float32 islands, norms, embedders and AdaLN projections are never quantised.
Of the text encoder the seven products of a decoder layer; embeddings, norms and the vision tower never.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor

from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.kernels.fp8_linear.scaled_mm import ALIGNMENT
from talkies.kernels.select import Ops
from talkies.model.weights import Place

LINEARS = ("attn.to_qkv", "attn.to_out", "ff.up", "ff.down")
# It runs once a request over the few rows of a prompt: nothing to gain.
REFINER = "token_refiner.*"
# Qwen3-VL's names below ``text_encoder.layers.<i>.``.
TEXT_LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
TEXT_PREFIX = "text_encoder."  # of exclusions that are about the text encoder
METHODS = ("none", "fp8")
# Of a product of random numbers, both sides rounded to e4m3: 0.037 where the arithmetic is right.
MAX_PRODUCT_ERROR = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeConfig:
    """``exclude``: names of linears that keep the block dtype, exact (``blocks.0.attn.to_out``) or with ``*``."""

    method: Literal["none", "fp8"] = "none"
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"quantization={self.method!r} is unknown", hint="use none or fp8", param="quantization")


def linear_names(config: DiTConfig) -> list[str]:
    """Every linear that can be quantised."""
    refiner = [f"token_refiner.blocks.{i}.{linear}" for i in range(config.num_refiner_layers) for linear in LINEARS]
    return [f"blocks.{i}.{linear}" for i in range(config.num_layers) for linear in LINEARS] + refiner


def text_linear_names(num_layers: int) -> list[str]:
    """Every linear of the text encoder that can be quantised, as exclusions name it."""
    return [f"{TEXT_PREFIX}layers.{i}.{linear}" for i in range(num_layers) for linear in TEXT_LINEARS]


def quantized_names(quantize: QuantizeConfig, config: DiTConfig) -> frozenset[str]:
    """The linears of the DiT that become e4m3. Raises ``ConfigError`` for an exclusion that names none."""
    return _chosen(quantize, linear_names(config), kept=(REFINER,), example="blocks.*.ff.down")


def quantized_text_names(quantize: QuantizeConfig, num_layers: int) -> frozenset[str]:
    """The same of the text encoder."""
    names = text_linear_names(num_layers)
    return _chosen(quantize, names, kept=(), example=f"{TEXT_PREFIX}layers.*.mlp.down_proj")


def _chosen(quantize: QuantizeConfig, names: Sequence[str], kept: Collection[str], example: str) -> frozenset[str]:
    if quantize.method == "none":
        return frozenset()
    for pattern in quantize.exclude:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"no linear is called {pattern!r}",
                hint=f"such as {names[0]} or {example}",
                param="quantization_exclude",
            )
    kept = (*kept, *quantize.exclude)
    return frozenset(name for name in names if not any(fnmatchcase(name, pattern) for pattern in kept))


def placer(quantize: QuantizeConfig, config: DiTConfig, ops: Ops, device: torch.device) -> Place:
    """Moves every tensor to ``device`` and quantises the chosen linears there, with a scale per output."""
    chosen = quantized_names(quantize, config)
    if chosen and device.type == "cuda":
        check_device(device, ops)
        _check_sizes(config)

    def place(name: str, tensor: Tensor) -> dict[str, Tensor]:
        tensor = tensor.to(device)
        owner, _, leaf = name.rpartition(".")
        if leaf != "weight" or owner not in chosen:
            return {name: tensor}
        rows = ops.quantize_rows(tensor)
        return {name: rows.data, f"{owner}.weight_scale": rows.scale}

    return place


def check_device(device: torch.device, ops: Ops, option: str = "quantization") -> None:
    """Raises ``ConfigError`` for a GPU without e4m3 products, or with wrong ones; ``option`` is what was set to fp8.

    Another engine's 8-bit kernels gave noise on one generation of GPUs, and nothing said so before the clip was seen.
    """
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        raise ConfigError(
            f"{option}=fp8 needs compute capability 8.9, this is {capability[0]}.{capability[1]}",
            hint=f"use {option}=none",
            param=option,
        )
    error = product_error(ops, device)
    if not error < MAX_PRODUCT_ERROR:
        raise ConfigError(
            f"{option}=fp8: e4m3 products on {torch.cuda.get_device_name(device)} are off by {error:.2g} of their size,"
            f" over {MAX_PRODUCT_ERROR:g}",
            hint=f"use {option}=none, or another version of torch or of the driver",
            param=option,
        )


def product_error(ops: Ops, device: torch.device) -> float:
    """Of a small product by ``ops`` on ``device`` to the same in float32, relative; NaN when it is not finite."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (torch.randn(rows, 512, generator=generator, device=device, dtype=torch.bfloat16) for rows in (64, 256))
    rows = ops.quantize_rows(weight)
    got = ops.fp8_linear(ops.quantize_rows(x), rows.data, rows.scale)
    want = x.float() @ weight.float().T
    return float((got - want).norm() / want.norm())


def _check_sizes(config: DiTConfig) -> None:
    sizes: Sequence[tuple[str, int]] = (
        ("hidden_size", config.hidden_size),
        ("attention width", config.inner_dim),
        ("ffn_dim", config.ffn_dim),
    )
    for what, size in sizes:
        if size % ALIGNMENT:
            raise ConfigError(
                f"quantization=fp8 needs sizes that are multiples of {ALIGNMENT}, and {what} is {size}",
                hint="use quantization=none",
                param="quantization",
            )
