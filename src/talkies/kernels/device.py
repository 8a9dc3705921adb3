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
def inverse_rms(square_sum, num_channels, eps):
    return tl.div_rn(1.0, tl.sqrt_rn(square_sum / num_channels + eps))


@triton.jit
def split_lanes(num_channels, BLOCK: tl.constexpr, TAIL: tl.constexpr):
    """The channels of a row in two parts, each with its mask; without a tail the first part stands for both."""
    a = tl.arange(0, BLOCK)
    in_a = a < num_channels
    b = a
    in_b = in_a
    if TAIL > 0:
        b = BLOCK + tl.arange(0, TAIL)
        in_b = b < num_channels
    return a, in_a, b, in_b


@triton.jit
def norm_split_row(
    xa, xb, weight_ptr, shift_ptr, scale_ptr, out_ptr, out_scale_ptr, row, out_stride, a, in_a, b, in_b,
    num_channels, eps, T: tl.constexpr, FP8: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Norms and modulates one row of float32 values in two parts, and stores it; without a tail ``xb`` is ignored.

    Whoever brings the row, the bits are the same: a block may norm its own input, or the block before it may.
    """
    square = tl.sum(xa * xa, axis=0)
    if TAIL > 0:
        square += tl.sum(xb * xb, axis=0)
    factor = inverse_rms(square, num_channels, eps)
    ya = modulate(xa, factor, weight_ptr, shift_ptr, scale_ptr, a, in_a, T)
    yb = ya
    if TAIL > 0:
        yb = modulate(xb, factor, weight_ptr, shift_ptr, scale_ptr, b, in_b, T)
    store_split_row(ya, yb, out_ptr, out_scale_ptr, row, out_stride, a, b, in_a, in_b, FP8, TAIL)


@triton.jit
def modulate(x, factor, weight_ptr, shift_ptr, scale_ptr, c, mask, T: tl.constexpr):
    """RMSNorm and modulation of some channels ``c`` of one row; each step rounds to ``T``. float32 in and out.

    ``factor`` is :func:`inverse_rms` of the whole row; the tables start at the row's entry.
    """
    weight = tl.load(weight_ptr + c, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + c, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + c, mask=mask, other=0.0).to(tl.float32)
    normed = (x * factor * weight).to(T).to(tl.float32)
    gain = (1.0 + scale).to(T).to(tl.float32)
    product = (normed * gain).to(T).to(tl.float32)
    return (product + shift).to(T).to(tl.float32)


@triton.jit
def to_e4m3(x, inverse):
    # A NaN must stay one: clamped away it would leave as an ordinary number, and no later check would see it.
    return tl.clamp(x * inverse, -E4M3_MAX, E4M3_MAX, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_scale(largest):
    return tl.maximum(largest * INVERSE_E4M3_MAX, MIN_SCALE)


@triton.jit
def store_row(y, out_ptr, scale_ptr, row, out_stride, c, mask, FP8: tl.constexpr):
    """One row of float32 values: cast to the output's dtype, or quantised with its own scale."""
    if FP8:
        scale = row_scale(tl.max(tl.abs(y), axis=0))
        tl.store(scale_ptr + row, scale)
        y = to_e4m3(y, tl.div_rn(1.0, scale))
    tl.store(out_ptr + row * out_stride + c, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_split_row(
    ya, yb, out_ptr, scale_ptr, row, out_stride, a, b, in_a, in_b, FP8: tl.constexpr, TAIL: tl.constexpr
):
    """As :func:`store_row` for a row in two parts; without a tail, ``yb`` is ignored."""
    out = out_ptr + row * out_stride
    if FP8:
        largest = tl.max(tl.abs(ya), axis=0)
        if TAIL > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(yb), axis=0))
        scale = row_scale(largest)
        tl.store(scale_ptr + row, scale)
        inverse = tl.div_rn(1.0, scale)
        ya = to_e4m3(ya, inverse)
        if TAIL > 0:
            yb = to_e4m3(yb, inverse)
    tl.store(out + a, ya.to(out_ptr.dtype.element_ty), mask=in_a)
    if TAIL > 0:
        tl.store(out + b, yb.to(out_ptr.dtype.element_ty), mask=in_b)


@triton.jit
def heads_of_row(ptr, a, r, in_heads, NUM_ANGLES: tl.constexpr, REST: tl.constexpr):
    """Some heads of one row, in the three parts that rotary sees: ``a`` turns with ``b``, ``r`` does not.

    ``ptr`` [heads, 1] points at the heads, or at what they share; a part that is empty is zeros.
    """
    xa = tl.zeros(in_heads.shape, dtype=ptr.dtype.element_ty)
    xb = xa
    xr = xa
    if NUM_ANGLES > 0:
        mask = in_heads & (a < NUM_ANGLES)[None, :]
        xa = tl.load(ptr + a[None, :], mask=mask, other=0.0)
        xb = tl.load(ptr + NUM_ANGLES + a[None, :], mask=mask, other=0.0)
    if REST > 0:
        xr = tl.load(ptr + 2 * NUM_ANGLES + r[None, :], mask=in_heads & (r < REST)[None, :], other=0.0)
    return xa, xb, xr


@triton.jit
def angles_of_row(cos_ptr, sin_ptr, row, a, heads, NUM_ANGLES: tl.constexpr):
    """Cosines and sines of one row, repeated for ``heads`` [heads, 1]: loaded in the layout of what they turn."""
    cos = (heads * 0).to(cos_ptr.dtype.element_ty)
    sin = cos
    if NUM_ANGLES > 0:
        at = row * NUM_ANGLES + heads * 0 + a[None, :]
        mask = (heads >= 0) & (a < NUM_ANGLES)[None, :]
        cos = tl.load(cos_ptr + at, mask=mask, other=1.0)
        sin = tl.load(sin_ptr + at, mask=mask, other=0.0)
    return cos, sin


@triton.jit
def norm_and_turn(
    xa, xb, xr, wa, wb, wr, cos, sin, head_dim, eps, T: tl.constexpr, NUM_ANGLES: tl.constexpr, REST: tl.constexpr
):
    """RMSNorm and rotary of heads in three parts, with the bits of ``qk_norm_rope`` in ``T``. Returns float32.

    Sums over channels go through a reshape: without it all tiles are shuffled into the layout of the rest, twice.
    """
    xa, xb, xr = xa.to(tl.float32), xb.to(tl.float32), xr.to(tl.float32)
    wa, wb, wr = wa.to(tl.float32), wb.to(tl.float32), wr.to(tl.float32)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    square = tl.zeros((xa.shape[0],), dtype=tl.float32)
    if NUM_ANGLES > 0:
        square += tl.reshape(tl.sum(xa * xa + xb * xb, axis=1, keep_dims=True), (xa.shape[0],))
    if REST > 0:
        square += tl.reshape(tl.sum(xr * xr, axis=1, keep_dims=True), (xr.shape[0],))
    factor = inverse_rms(square, head_dim, eps)[:, None]
    ya = xa
    yb = xb
    yr = xr
    if NUM_ANGLES > 0:
        na = (xa * factor * wa).to(T).to(tl.float32)
        nb = (xb * factor * wb).to(T).to(tl.float32)
        ya = ((na * cos).to(T).to(tl.float32) - (nb * sin).to(T).to(tl.float32)).to(T).to(tl.float32)
        yb = ((nb * cos).to(T).to(tl.float32) + (na * sin).to(T).to(tl.float32)).to(T).to(tl.float32)
    if REST > 0:
        yr = (xr * factor * wr).to(T).to(tl.float32)
    return ya, yb, yr


@triton.jit
def store_heads(ptr, ya, yb, yr, a, r, in_heads, NUM_ANGLES: tl.constexpr, REST: tl.constexpr):
    """Where :func:`heads_of_row` would find them."""
    T: tl.constexpr = ptr.dtype.element_ty
    if NUM_ANGLES > 0:
        mask = in_heads & (a < NUM_ANGLES)[None, :]
        tl.store(ptr + a[None, :], ya.to(T), mask=mask)
        tl.store(ptr + NUM_ANGLES + a[None, :], yb.to(T), mask=mask)
    if REST > 0:
        tl.store(ptr + 2 * NUM_ANGLES + r[None, :], yr.to(T), mask=in_heads & (r < REST)[None, :])
