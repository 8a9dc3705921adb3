"""Rows to e4m3 with a scale each: the largest magnitude of a row becomes 448. S rows, K channels."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.fp8 import E4M3, Fp8Rows, scale_of


def quantize_rows(x_SK: Tensor) -> Fp8Rows:
    """``scale = max|row| / 448``; values are multiplied by its reciprocal and rounded to nearest even."""
    x = x_SK.float()
    scale = scale_of(x.abs().amax(dim=-1, keepdim=True))
    # The reciprocal may carry the largest value past 448 by two units of float32, which round to 448.
    return Fp8Rows((x * (1.0 / scale)).to(E4M3), scale, x_SK.dtype)
