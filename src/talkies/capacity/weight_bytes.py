"""Bytes of the weights of each component, wherever they are put, from sizes alone. Nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from talkies.capacity.sizes import Sizes, TextSizes
from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.placement.quantize import (
    TEXT_LINEARS,
    TEXT_PREFIX,
    QuantizeConfig,
    quantized_names,
    quantized_text_names,
)
from talkies.placement.stream.flat import padded
from talkies.placement.stream.layerwise import LayerwiseConfig, streamed_positions


@cache
def block_bytes(config: DiTConfig, quantize: QuantizeConfig, size: int) -> tuple[int, ...]:
    """Of each block without AdaLN, in its flat buffer; ``size`` is e."""
    chosen = quantized_names(quantize, config)
    return tuple(_module_bytes(config, f"blocks.{i}", chosen, size) for i in range(config.num_layers))


@cache
def refiner_bytes(config: DiTConfig, size: int) -> tuple[int, ...]:
    """Of each block of the text refiner, which is never quantised."""
    return tuple(
        _module_bytes(config, f"token_refiner.blocks.{i}", frozenset(), size) for i in range(config.num_refiner_layers)
    )


@cache
def top_bytes(config: DiTConfig, size: int) -> int:
    """Outside the stacks and AdaLN: stays on the device."""
    specs = [s for s in keys.top_specs(config) if not s.adaln and not s.name.startswith("token_refiner.blocks.")]
    return sum(prod(s.shape) * (4 if s.island else size) for s in specs)


def _module_bytes(config: DiTConfig, path: str, chosen: frozenset[str], size: int) -> int:
    total = 0
    for spec in keys.block_specs(config, "", adaln=False):
        fp8 = spec.name.endswith(".weight") and f"{path}.{spec.name.removesuffix('.weight')}" in chosen
        total += padded(prod(spec.shape) * (1 if fp8 else size)) + (padded(4 * spec.shape[0]) if fp8 else 0)
    return total


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of one component: always on the device, there while it works, and in host memory."""

    fixed: int
    visiting: int
    host: int


def dit_weights(sizes: Sizes, quantize: QuantizeConfig, layerwise: LayerwiseConfig | None) -> Weights:
    """All partitions; one works at a time."""
    config, size, n = sizes.dit, sizes.block_bytes, sizes.num_partitions
    blocks, refiner = block_bytes(config, quantize, size), refiner_bytes(config, size)
    top = top_bytes(config, size)
    positions = () if layerwise is None else streamed_positions(config.num_layers, layerwise)
    if layerwise is None:
        return Weights(n * (top + sum(blocks) + sum(refiner)), 0, 0)
    streamed = [blocks[p] for p in positions]
    resident = sum(blocks) - sum(streamed)
    visiting = min(layerwise.slots, len(streamed)) * max(streamed, default=0)
    host = sum(streamed)
    if len(refiner) > 1:  # one refiner block sits in its slot for good
        host += sum(refiner)
    else:
        resident += sum(refiner)
    return Weights(n * (top + resident), visiting, n * host)


def file_bytes(sizes: Sizes) -> int:
    """Of the checkpoint's weight files: the partitions' DiTs with their AdaLN matrices, and what they share."""
    config, size = sizes.dit, sizes.block_bytes
    dit = sum(prod(spec.shape) * (4 if spec.island else size) for spec in keys.all_specs(config))
    shared = (text_weights(sizes, "resident"), video_weights(sizes, "resident"), audio_weights(sizes, "resident"))
    return sizes.num_partitions * dit + sum(part.fixed for part in shared)


def text_weights(sizes: Sizes, where: str, slots: int = 2, quantize: QuantizeConfig | None = None) -> Weights:
    """``where`` as in ``components.Where``; ``slots`` are a stream's, where it streams."""
    t, size = sizes.text, sizes.block_bytes
    layers = text_layer_bytes(t, quantize or QuantizeConfig(), size)
    whole = sum(layers) + t.rest_parameters * size
    return _weights(where, max(layers), t.num_layers, t.visiting_rest_parameters(slots) * size, slots, whole=whole)


def video_weights(sizes: Sizes, where: str, slots: int = 2) -> Weights:
    """Of the decoder; the encoder is no part of a plan."""
    v = sizes.video
    return _weights(where, v.layer_bytes, v.num_layers, v.rest_bytes, slots)


def audio_weights(sizes: Sizes, where: str) -> Weights:
    """Encoder and decoder in float32; it has no layers to stream."""
    return _weights(where, 0, 0, 4 * sizes.audio_parameters, 1)


def _weights(where: str, layer: int, num_layers: int, rest: int, slots: int, whole: int | None = None) -> Weights:
    """``layer`` is the largest one; ``whole`` is for layers that differ."""
    whole = num_layers * layer + rest if whole is None else whole
    if where == "resident":
        return Weights(whole, 0, 0)
    if where == "evicted" or num_layers <= slots:
        return Weights(0, whole, whole)
    return Weights(0, slots * layer + rest, whole)


@cache
def text_layer_bytes(text: TextSizes, quantize: QuantizeConfig, size: int) -> tuple[int, ...]:
    """Of each decoder layer, ``size`` bytes a value; an e4m3 linear has a float32 scale an output besides, and is never
    cut."""
    chosen = quantized_text_names(quantize, text.num_layers)
    return tuple(
        text.norm_parameters * size
        + sum(
            prod(shape) + 4 * shape[0]
            if f"{TEXT_PREFIX}layers.{i}.{name}" in chosen
            else prod(shape) // text.shards * size
            for name, shape in zip(TEXT_LINEARS, text.linear_shapes, strict=True)
        )
        for i in range(text.num_layers)
    )
