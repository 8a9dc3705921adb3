"""Sizes of the text encoder, and bytes of its layers in either precision. No torch calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from talkies.placement.quantize import TEXT_LINEARS, TEXT_PREFIX, QuantizeConfig, quantized_text_names


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSizes:
    """The text encoder; the defaults are the released one's (Qwen3-VL 32B, 50 of its layers)."""

    width: int = 5120
    inner: int = 25_600
    num_layers: int = 50
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    vision_parameters: int = 576_000_000
    num_vision_layers: int = 27
    vision_layer_parameters: int = 15_239_504  # of vision_parameters

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's products, by the names of ``quantize.TEXT_LINEARS``."""
        queries, keys_ = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes = (
            (queries, self.width),
            (keys_, self.width),
            (keys_, self.width),
            (self.width, queries),
            (self.inner, self.width),
            (self.inner, self.width),
            (self.width, self.inner),
        )
        return dict(zip(TEXT_LINEARS, shapes, strict=True))

    @property
    def norm_parameters(self) -> int:
        return 2 * self.width + 2 * self.head_dim

    @property
    def layer_parameters(self) -> int:
        return sum(map(prod, self.linears.values())) + self.norm_parameters

    @property
    def rest_parameters(self) -> int:
        """Of all but the decoder layers."""
        return self.vocabulary * self.width + self.vision_parameters

    def visiting_rest_parameters(self, slots: int) -> int:
        """The same while the encoder streams: of more vision layers than slots only those in the slots are there."""
        return self.rest_parameters - max(0, self.num_vision_layers - slots) * self.vision_layer_parameters


def layer_token_bytes(width: int, inner: int, size: int) -> int:
    """What a token holds in a pre-norm layer of transformers, ``size`` bytes a value: about ten widths, three inner."""
    return size * (10 * width + 3 * inner)


@cache
def text_layer_bytes(text: TextSizes, quantize: QuantizeConfig, size: int) -> tuple[int, ...]:
    """Of each decoder layer, ``size`` bytes a value; an e4m3 linear has a float32 scale an output besides."""
    chosen = quantized_text_names(quantize, text.num_layers)
    return tuple(
        text.norm_parameters * size
        + sum(
            prod(shape) + 4 * shape[0] if f"{TEXT_PREFIX}layers.{i}.{name}" in chosen else prod(shape) * size
            for name, shape in text.linears.items()
        )
        for i in range(text.num_layers)
    )
