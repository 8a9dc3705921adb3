"""Rows to e4m3 with a scale each: the largest magnitude of a row becomes 448. S rows, K channels."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.fp8 import E4M3, E4M3_MAX, Fp8Rows, scale_of


def quantize_rows(x_SK: Tensor) -> Fp8Rows:
    """``scale = max|row| / 448``; values are multiplied by its reciprocal, clamped and rounded to nearest even."""
    x = x_SK.float()
    scale = scale_of(x.abs().amax(dim=-1, keepdim=True))
    # The reciprocal may carry the largest value just past 448, and e4m3 has no infinity: past it is NaN.
    return Fp8Rows((x * (1.0 / scale)).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3), scale, x_SK.dtype)
