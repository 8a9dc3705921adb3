"""``torch._scaled_mm`` with row-wise scales: the tensor cores' own fp8 product (compute capability 8.9 and up)."""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.fp8_linear import reference

ALIGNMENT = 16  # of inputs and outputs, from cuBLAS
# Hopper adds e4m3 products in about 14 bits between promotions to float32; with fast accumulation it never promotes.
# What that costs next to the rounding of the operands is a number of bench/dit_forward.
FAST_ACCUMULATION = True


def fp8_linear(x_SK: Fp8Rows, weight_NK: Tensor, weight_scale_N1: Tensor, *, out: Tensor | None = None) -> Tensor:
    """See the reference. On a CPU it is the reference."""
    if x_SK.device.type != "cuda":
        return reference.fp8_linear(x_SK, weight_NK, weight_scale_N1, out=out)
    return scaled_mm(x_SK, weight_NK, weight_scale_N1, fast=FAST_ACCUMULATION, out=out)


def scaled_mm(
    x_SK: Fp8Rows, weight_NK: Tensor, weight_scale_N1: Tensor, *, fast: bool, out: Tensor | None = None
) -> Tensor:
    """:func:`fp8_linear` on a GPU, with or without fast accumulation. K and N are multiples of ``ALIGNMENT``."""
    # A streamed weight must keep its layout: the product wants both operands contiguous in K.
    assert weight_NK.stride(1) == 1, weight_NK.stride()
    assert x_SK.data.stride(1) == 1, x_SK.data.stride()
    assert out is None or (out.is_contiguous() and out.dtype == x_SK.dtype), (out.stride(), out.dtype)
    return torch._scaled_mm(
        x_SK.data,
        weight_NK.t(),
        scale_a=x_SK.scale,
        scale_b=weight_scale_N1.t(),
        out_dtype=x_SK.dtype,
        use_fast_accum=fast,
        **({} if out is None else {"out": out}),
    )
