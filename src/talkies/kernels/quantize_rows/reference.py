"""Rows to e4m3 with a scale each: the largest magnitude of a row becomes 448. S rows, K channels."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.fp8 import E4M3, E4M3_MAX, MIN_SCALE, Fp8Rows


def quantize_rows(x_SK: Tensor) -> Fp8Rows:
    """``scale = max|row| / 448``; values are multiplied by its reciprocal, clamped and rounded to nearest even."""
    x = x_SK.float()
    scale = (x.abs().amax(dim=-1, keepdim=True) * (1.0 / E4M3_MAX)).clamp_(min=MIN_SCALE)
    # The reciprocal may carry the largest value just past 448, and e4m3 has no infinity: past it is NaN.
    return Fp8Rows((x * (1.0 / scale)).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3), scale, x_SK.dtype)
