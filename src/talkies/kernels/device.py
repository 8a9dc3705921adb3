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
    num_channels, eps, T: tl.constexpr, FP8: tl.constexpr, TAIL: tl.constexpr, MODULATED: tl.constexpr,
):  # fmt: skip
    """Norms and modulates one row of float32 values in two parts, and stores it; without a tail ``xb`` is ignored.

    Whoever brings the row, the bits are the same: a block may norm its own input, or the block before it may.
    """
    square = tl.sum(xa * xa, axis=0)
    if TAIL > 0:
        square += tl.sum(xb * xb, axis=0)
    factor = inverse_rms(square, num_channels, eps)
    ya = modulate(xa, factor, weight_ptr, shift_ptr, scale_ptr, a, in_a, T, MODULATED)
    yb = ya
    if TAIL > 0:
        yb = modulate(xb, factor, weight_ptr, shift_ptr, scale_ptr, b, in_b, T, MODULATED)
    store_split_row(ya, yb, out_ptr, out_scale_ptr, row, out_stride, a, b, in_a, in_b, FP8, TAIL)


@triton.jit
def modulate(
    x, factor, weight_ptr, shift_ptr, scale_ptr, c, mask, T: tl.constexpr, MODULATED: tl.constexpr
):  # fmt: skip
    """RMSNorm and modulation of some channels ``c`` of one row; each step rounds to ``T``. float32 in and out.

    ``factor`` is :func:`inverse_rms` of the whole row; the tables start at the row's entry, and are not read unless
    ``MODULATED``.
    """
    weight = tl.load(weight_ptr + c, mask=mask, other=0.0).to(tl.float32)
    y = (x * factor * weight).to(T).to(tl.float32)
    if MODULATED:
        scale = tl.load(scale_ptr + c, mask=mask, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + c, mask=mask, other=0.0).to(tl.float32)
        gain = (1.0 + scale).to(T).to(tl.float32)
        product = (y * gain).to(T).to(tl.float32)
        y = (product + shift).to(T).to(tl.float32)
    return y


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
def pairs_of_head(NUM_ANGLES: tl.constexpr, PAIRS: tl.constexpr, BLOCK_P: tl.constexpr):
    """The channels of a head as pairs, [1, BLOCK_P]: the first of each, the second, and which of them there are.

    Rotary turns channel c of the first A with channel c + A. The rest does not turn; its halves are paired, so that a
    head fills its lanes.
    """
    p = tl.arange(0, BLOCK_P)[None, :]
    passes = p >= NUM_ANGLES
    return p + tl.where(passes, NUM_ANGLES, 0), p + tl.where(passes, PAIRS, NUM_ANGLES), p < PAIRS


@triton.jit
def queries_and_keys(group, num_heads, HEADS: tl.constexpr):
    """A group of the heads of queries and, after their last, of keys, [HEADS, 1]: number, whether keys, whether any."""
    head = group * HEADS + tl.arange(0, HEADS)[:, None]
    is_key = head >= num_heads
    return head - is_key.to(tl.int32) * num_heads, is_key, head < 2 * num_heads


@triton.jit
def load_pairs(ptr, first, second, mask):
    """``ptr`` [heads, 1] points at heads, or at what they share."""
    return tl.load(ptr + first, mask=mask, other=0.0), tl.load(ptr + second, mask=mask, other=0.0)


@triton.jit
def store_pairs(ptr, ya, yb, first, second, mask):
    tl.store(ptr + first, ya.to(ptr.dtype.element_ty), mask=mask)
    tl.store(ptr + second, yb.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def angles_of_row(cos_ptr, sin_ptr, row, heads, NUM_ANGLES: tl.constexpr, BLOCK_P: tl.constexpr):
    """Cosines and sines of one row's pairs, repeated for ``heads`` [heads, 1]: loaded in the layout of what they turn.

    A pair that does not turn has the angle 0.
    """
    cos = (heads * 0).to(cos_ptr.dtype.element_ty)
    sin = cos
    if NUM_ANGLES > 0:
        p = heads * 0 + tl.arange(0, BLOCK_P)[None, :]
        cos = tl.load(cos_ptr + row * NUM_ANGLES + p, mask=p < NUM_ANGLES, other=1.0)
        sin = tl.load(sin_ptr + row * NUM_ANGLES + p, mask=p < NUM_ANGLES, other=0.0)
    return cos, sin


@triton.jit
def norm_and_turn(xa, xb, wa, wb, cos, sin, head_dim, eps, T: tl.constexpr, NUM_ANGLES: tl.constexpr):
    """RMSNorm and rotary of heads in pairs, rounded to ``T`` where the reference rounds. Returns float32."""
    xa, xb, wa, wb = xa.to(tl.float32), xb.to(tl.float32), wa.to(tl.float32), wb.to(tl.float32)
    factor = inverse_rms(tl.sum(xa * xa + xb * xb, axis=1, keep_dims=True), head_dim, eps)
    ya = (xa * factor * wa).to(T).to(tl.float32)
    yb = (xb * factor * wb).to(T).to(tl.float32)
    if NUM_ANGLES > 0:
        na, nb, cos, sin = ya, yb, cos.to(tl.float32), sin.to(tl.float32)
        ya = ((na * cos).to(T).to(tl.float32) - (nb * sin).to(T).to(tl.float32)).to(T).to(tl.float32)
        yb = ((nb * cos).to(T).to(tl.float32) + (na * sin).to(T).to(tl.float32)).to(T).to(tl.float32)
    return ya, yb
