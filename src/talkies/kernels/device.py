"""Device functions that several Triton kernels share. Rounding points are the references'.

Importing this imports Triton; nothing does so before a kernel set is asked for.
"""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)
INVERSE_E4M3_MAX = tl.constexpr(1.0 / 448.0)
MIN_SCALE = tl.constexpr(1e-12)


@triton.jit
def rms_norm(x, weight, num_channels, eps):
    """float32 in, float32 out, unrounded; masked channels of ``x`` are zero. The last axis is the channels'."""
    mean_square = tl.sum(x * x, axis=-1, keep_dims=True) / num_channels
    return x * tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps)) * weight


@triton.jit
def modulate(x, weight_ptr, shift_ptr, scale_ptr, entry, table_stride, c, mask, num_channels, eps, T: tl.constexpr):
    """RMSNorm and modulation of one row of float32 values; each step rounds to ``T``. Returns float32."""
    weight = tl.load(weight_ptr + c, mask=mask, other=0.0).to(tl.float32)
    normed = rms_norm(x, weight, num_channels, eps).to(T).to(tl.float32)
    scale = tl.load(scale_ptr + entry * table_stride + c, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + entry * table_stride + c, mask=mask, other=0.0).to(tl.float32)
    factor = (1.0 + scale).to(T).to(tl.float32)
    product = (normed * factor).to(T).to(tl.float32)
    return (product + shift).to(T).to(tl.float32)


@triton.jit
def to_e4m3(x, inverse):
    # A NaN must stay one: clamped away it would leave as an ordinary number, and no later check would see it.
    return tl.clamp(x * inverse, -E4M3_MAX, E4M3_MAX, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def store_row(y, out_ptr, scale_ptr, row, out_stride, c, mask, FP8: tl.constexpr):
    """One row of float32 values: cast to the output's dtype, or quantised with its own scale."""
    if FP8:
        scale = tl.maximum(tl.max(tl.abs(y), axis=0) * INVERSE_E4M3_MAX, MIN_SCALE)
        tl.store(scale_ptr + row, scale)
        y = to_e4m3(y, tl.div_rn(1.0, scale))
    tl.store(out_ptr + row * out_stride + c, y.to(out_ptr.dtype.element_ty), mask=mask)
