"""``qkv_scales`` in one pass: a program some heads of a few hundred rows; a second kernel reduces what they found.

No atomics; a launch a document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import angles_of_row, load_pairs, norm_and_turn, pairs_of_head, row_scale, store_pairs
from talkies.kernels.launch import EXACT, Rotary, block_of, rotary_of
from talkies.kernels.qkv_scales.reference import EVERY, QkvScales

LONG = 32_768  # rows of a document whose programs take more of them
HEADS = 8  # of a program
CHUNKS_AT_ONCE = 16  # of the second kernel


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
    PAIRS: tl.constexpr,
    CHUNK: tl.constexpr,
    EVERY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of each chunk: the sum of ``EVERY``-th keys, the largest magnitude of all values."""
    chunk = tl.program_id(1)
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[:, None]
    in_heads = head < num_heads
    first, second, in_pairs = pairs_of_head(NUM_ANGLES, PAIRS, BLOCK_P)
    mask = in_heads & in_pairs
    c = tl.arange(0, BLOCK)[None, :]
    in_values = in_heads & (c < head_dim)
    wa, wb = load_pairs(norm_k_ptr + head * 0, first, second, mask)
    keys = qkv_ptr + kind_stride + head * head_stride
    values = keys + kind_stride
    total_a = tl.zeros((HEADS, BLOCK_P), dtype=tl.float32)
    total_b = total_a
    largest = tl.zeros((HEADS, BLOCK), dtype=tl.float32)
    begin = start + chunk.to(tl.int64) * CHUNK
    end = tl.minimum(begin + CHUNK, stop)
    for row in range(begin, end, EVERY):
        xa, xb = load_pairs(keys + row * row_stride, first, second, mask)
        cos, sin = angles_of_row(cos_ptr, sin_ptr, row, head, NUM_ANGLES, BLOCK_P)
        for after in tl.static_range(EVERY):
            v = tl.load(values + tl.minimum(row + after, end - 1) * row_stride + c, mask=in_values, other=0.0)
            largest = tl.maximum(largest, tl.abs(v.to(tl.float32)))
        ya, yb = norm_and_turn(xa, xb, wa, wb, cos, sin, head_dim, eps, T, NUM_ANGLES)
        total_a += ya
        total_b += yb
    out = keys_ptr + (chunk * num_heads + head) * head_dim
    store_pairs(out, total_a, total_b, first, second, mask)
    tl.store(values_ptr + chunk * num_heads + head, tl.max(largest, axis=1, keep_dims=True), mask=in_heads)


@triton.jit(do_not_specialize=["num_sampled", "num_chunks"])
def reduce_scales_kernel(
    keys_ptr,
    values_ptr,
    norm_q_ptr,
    norm_k_ptr,
    scale_ptr,
    mean_ptr,
    scale_stride,
    num_sampled,
    num_chunks,
    num_heads,
    head_dim,
    root_dim,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a head: all chunks of a document, ``CHUNKS`` at a time."""
    head = tl.program_id(0)
    c = tl.arange(0, BLOCK)[None, :]
    in_head = c < head_dim
    total = tl.zeros((CHUNKS, BLOCK), dtype=tl.float32)
    v_largest = tl.zeros((CHUNKS, 1), dtype=tl.float32)
    for first in range(0, num_chunks, CHUNKS):
        part = (first + tl.arange(0, CHUNKS)[:, None]) * num_heads + head
        in_parts = part < num_chunks * num_heads
        total += tl.load(keys_ptr + part * head_dim + c, mask=in_parts & in_head, other=0.0)
        v_largest = tl.maximum(v_largest, tl.load(values_ptr + part, mask=in_parts, other=0.0))
    mean = tl.sum(total, axis=0, keep_dims=True) / num_sampled
    q_weight = tl.load(norm_q_ptr + c, mask=in_head, other=0.0).to(tl.float32)
    k_weight = tl.load(norm_k_ptr + c, mask=in_head, other=0.0).to(tl.float32)
    q_largest = tl.max(tl.abs(q_weight), axis=1) * root_dim
    k_largest = tl.max(tl.abs(k_weight), axis=1) * root_dim + tl.max(tl.abs(mean), axis=1)
    at = scale_ptr + head + tl.arange(0, 1)
    tl.store(mean_ptr + head * head_dim + c, mean, mask=in_head)
    tl.store(at, row_scale(q_largest))
    tl.store(at + scale_stride, row_scale(k_largest))
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
    num_rows, _, num_heads, head_dim = qkv_S3NH.shape
    assert qkv_S3NH.stride(3) == 1
    scale_3BN = torch.empty(3, len(spans), num_heads, dtype=torch.float32, device=qkv_S3NH.device)
    mean_BNH = torch.empty(len(spans), num_heads, head_dim, dtype=torch.float32, device=qkv_S3NH.device)
    rotary = rotary_of(cos_SA, sin_SA, num_rows, head_dim, otherwise=norm_k_H)
    for document, (start, stop) in enumerate(spans):
        keys, values = _parts(qkv_S3NH, norm_k_H, rotary, start, stop, eps)
        reduce_scales_kernel[(num_heads,)](
            keys,
            values,
            norm_q_H,
            norm_k_H,
            scale_3BN[:, document],
            mean_BNH[document],
            scale_3BN.stride(0),
            len(range(start, stop, EVERY)),
            len(keys),
            num_heads,
            head_dim,
            math.sqrt(head_dim),
            CHUNKS=CHUNKS_AT_ONCE,
            BLOCK=block_of(head_dim),
            num_warps=4,
            **EXACT,
        )
    return QkvScales(scale_3BN, mean_BNH)


def _parts(
    qkv_S3NH: Tensor, norm_k_H: Tensor, rotary: Rotary, start: int, stop: int, eps: float
) -> tuple[Tensor, Tensor]:
    """What the programs of one document found: of keys [chunks, N, H], of values [chunks, N]; float32."""
    _, _, num_heads, head_dim = qkv_S3NH.shape
    chunk = EVERY * (64 if stop - start >= LONG else 16)
    num_chunks = triton.cdiv(stop - start, chunk)
    keys = torch.empty(num_chunks, num_heads, head_dim, dtype=torch.float32, device=qkv_S3NH.device)
    values = torch.empty(num_chunks, num_heads, dtype=torch.float32, device=qkv_S3NH.device)
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
        CHUNK=chunk,
        EVERY=EVERY,
        HEADS=HEADS,
        BLOCK=block_of(head_dim),
        num_warps=2,
        **EXACT,
    )
    return keys, values
