"""``qkv_scales`` in one pass: a program eight heads of a hundred rows; a second kernel reduces what they found.

Sums and chunks are those of ``head_stats``, which finds the same bits in what ``qk_norm_rope`` writes. No atomics; a
launch a document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import angles_of_row, heads_of_row, norm_and_turn, row_scale, store_heads
from talkies.kernels.launch import EXACT, block_of, rotary_of
from talkies.kernels.qkv_scales.reference import QkvScales

CHUNK = 128  # rows of a program
HEADS = 8  # of a program
CHUNKS_AT_ONCE = 16  # of the second kernel
PARTS = 3  # sum, least and largest of the keys


@triton.jit
def row_of_program(
    qkv_ptr, cos_ptr, sin_ptr, row, row_stride, kind_stride, head_stride, heads, in_heads, a, r, c, head_dim,
    NUM_ANGLES: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Keys in three parts, cosines and sines, values."""
    row = row.to(tl.int64)
    keys = qkv_ptr + row * row_stride + kind_stride + heads * head_stride
    xa, xb, xr = heads_of_row(keys, a, r, in_heads, NUM_ANGLES, REST)
    cos, sin = angles_of_row(cos_ptr, sin_ptr, row, a, heads, NUM_ANGLES)
    v = tl.load(keys + kind_stride + c[None, :], mask=in_heads & (c < head_dim)[None, :], other=0.0)
    return xa, xb, xr, cos, sin, v


@triton.jit(do_not_specialize=["start", "stop"])
def qkv_scales_kernel(
    qkv_ptr,
    norm_k_ptr,
    cos_ptr,
    sin_ptr,
    keys_ptr,
    values_ptr,
    start,
    stop,
    row_stride,
    kind_stride,
    head_stride,
    num_heads,
    head_dim,
    eps,
    NUM_ANGLES: tl.constexpr,
    REST: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(1)
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    h = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    heads = h[:, None]
    in_heads = heads < num_heads
    a, r, c = tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK)
    wa, wb, wr = heads_of_row(norm_k_ptr + heads * 0, a, r, in_heads, NUM_ANGLES, REST)
    total_a = tl.zeros((HEADS, BLOCK_A), dtype=tl.float32)
    total_b = total_a
    total_r = tl.zeros((HEADS, BLOCK_R), dtype=tl.float32)
    low_a = total_a + float("inf")
    low_b = low_a
    low_r = total_r + float("inf")
    high_a = total_a - float("inf")
    high_b = high_a
    high_r = total_r - float("inf")
    v_largest = tl.zeros((HEADS, BLOCK), dtype=tl.float32)
    first = start + chunk * CHUNK
    last = tl.minimum(first + CHUNK, stop) - 1
    xa, xb, xr, cos, sin, v = row_of_program(
        qkv_ptr, cos_ptr, sin_ptr, first, row_stride, kind_stride, head_stride, heads, in_heads, a, r, c, head_dim,
        NUM_ANGLES, REST,
    )  # fmt: skip
    for row in range(first, last + 1):
        # The next row is on its way while this one is worked on.
        next_xa, next_xb, next_xr, next_cos, next_sin, next_v = row_of_program(
            qkv_ptr, cos_ptr, sin_ptr, tl.minimum(row + 1, last), row_stride, kind_stride, head_stride, heads, in_heads,
            a, r, c, head_dim, NUM_ANGLES, REST,
        )  # fmt: skip
        ya, yb, yr = norm_and_turn(xa, xb, xr, wa, wb, wr, cos, sin, head_dim, eps, T, NUM_ANGLES, REST)
        if NUM_ANGLES > 0:
            total_a += ya
            total_b += yb
            low_a = tl.minimum(low_a, ya)
            low_b = tl.minimum(low_b, yb)
            high_a = tl.maximum(high_a, ya)
            high_b = tl.maximum(high_b, yb)
        if REST > 0:
            total_r += yr
            low_r = tl.minimum(low_r, yr)
            high_r = tl.maximum(high_r, yr)
        v_largest = tl.maximum(v_largest, tl.abs(v.to(tl.float32)))
        xa, xb, xr, cos, sin, v = next_xa, next_xb, next_xr, next_cos, next_sin, next_v
    num_channels = num_heads * head_dim
    out = keys_ptr + chunk * PARTS * num_channels + heads * head_dim
    store_heads(out, total_a, total_b, total_r, a, r, in_heads, NUM_ANGLES, REST)
    store_heads(out + num_channels, low_a, low_b, low_r, a, r, in_heads, NUM_ANGLES, REST)
    store_heads(out + 2 * num_channels, high_a, high_b, high_r, a, r, in_heads, NUM_ANGLES, REST)
    tl.store(values_ptr + chunk * num_heads + h, tl.max(v_largest, axis=1), mask=h < num_heads)


@triton.jit(do_not_specialize=["num_rows", "num_chunks"])
def reduce_scales_kernel(
    keys_ptr,
    values_ptr,
    norm_q_ptr,
    scale_ptr,
    mean_ptr,
    scale_stride,
    num_rows,
    num_chunks,
    num_heads,
    head_dim,
    root_dim,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a head: all chunks of a document, ``CHUNKS`` at a time."""
    head = tl.program_id(0)
    num_channels = num_heads * head_dim
    c = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((CHUNKS, BLOCK), dtype=tl.float32)
    low = tl.full((CHUNKS, BLOCK), float("inf"), dtype=tl.float32)
    high = tl.full((CHUNKS, BLOCK), float("-inf"), dtype=tl.float32)
    v_largest = tl.zeros((CHUNKS, 1), dtype=tl.float32)
    for first in range(0, num_chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)[:, None]
        mask = (chunk < num_chunks) & (c < head_dim)
        part = keys_ptr + chunk * PARTS * num_channels + head * head_dim + c
        total += tl.load(part, mask=mask, other=0.0)
        low = tl.minimum(low, tl.load(part + num_channels, mask=mask, other=float("inf")))
        high = tl.maximum(high, tl.load(part + 2 * num_channels, mask=mask, other=float("-inf")))
        of_values = tl.load(values_ptr + chunk * num_heads + head, mask=chunk < num_chunks, other=0.0)
        v_largest = tl.maximum(v_largest, of_values)
    mean = tl.sum(total, axis=0, keep_dims=True) / num_rows
    # A channel is farthest from its mean at its extremes.
    above = tl.max(high, axis=0, keep_dims=True) - mean
    below = mean - tl.min(low, axis=0, keep_dims=True)
    k_largest = tl.where(c < head_dim, tl.maximum(above, below), 0.0)
    weight = tl.load(norm_q_ptr + c, mask=c < head_dim, other=0.0).to(tl.float32)
    q_largest = tl.max(tl.abs(weight), axis=1) * root_dim
    at = scale_ptr + head + tl.arange(0, 1)
    tl.store(mean_ptr + head * head_dim + c, mean, mask=c < head_dim)
    tl.store(at, row_scale(q_largest))
    tl.store(at + scale_stride, row_scale(tl.max(k_largest, axis=1)))
    tl.store(at + 2 * scale_stride, row_scale(tl.max(v_largest, axis=0)))


def qkv_scales(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    spans: Sequence[tuple[int, int]],
    *,
    eps: float,
) -> QkvScales:
    _, _, num_heads, head_dim = qkv_S3NH.shape
    scale_3BN = torch.empty(3, len(spans), num_heads, dtype=torch.float32, device=qkv_S3NH.device)
    mean_BNH = torch.empty(len(spans), num_heads, head_dim, dtype=torch.float32, device=qkv_S3NH.device)
    for document, (start, stop) in enumerate(spans):
        keys, values = _parts(qkv_S3NH, norm_k_H, cos_SA, sin_SA, start, stop, eps)
        reduce_scales_kernel[(num_heads,)](
            keys,
            values,
            norm_q_H,
            scale_3BN[:, document],
            mean_BNH[document],
            scale_3BN.stride(0),
            stop - start,
            len(keys),
            num_heads,
            head_dim,
            math.sqrt(head_dim),
            PARTS=PARTS,
            CHUNKS=CHUNKS_AT_ONCE,
            BLOCK=block_of(head_dim),
            num_warps=4,
            **EXACT,
        )
    return QkvScales(scale_3BN, mean_BNH)


def _parts(
    qkv_S3NH: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    start: int,
    stop: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """What the programs of one document found: of keys [chunks, PARTS, N * H], of values [chunks, N]; float32."""
    num_rows, _, num_heads, head_dim = qkv_S3NH.shape
    rotary = rotary_of(cos_SA, sin_SA, num_rows, head_dim, otherwise=norm_k_H)
    num_chunks = triton.cdiv(stop - start, CHUNK)
    keys = torch.empty(num_chunks, PARTS, num_heads * head_dim, dtype=torch.float32, device=qkv_S3NH.device)
    values = torch.empty(num_chunks, num_heads, dtype=torch.float32, device=qkv_S3NH.device)
    assert qkv_S3NH.stride(3) == 1
    qkv_scales_kernel[(triton.cdiv(num_heads, HEADS), num_chunks)](
        qkv_S3NH,
        norm_k_H,
        rotary.cos,
        rotary.sin,
        keys,
        values,
        start,
        stop,
        qkv_S3NH.stride(0),
        qkv_S3NH.stride(1),
        qkv_S3NH.stride(2),
        num_heads,
        head_dim,
        eps,
        **rotary.constants,
        PARTS=PARTS,
        CHUNK=CHUNK,
        HEADS=HEADS,
        BLOCK=block_of(head_dim),
        num_warps=2,
        **EXACT,
    )
    return keys, values
