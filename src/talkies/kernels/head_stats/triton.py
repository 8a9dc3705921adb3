"""``head_stats`` in one pass: a program a thousand channels of a hundred rows; a second kernel reduces what they found.

Rows of a program are read one after another, each as one long piece, so memory is read in order. No atomics: two runs
give the same bits. A launch a document and no table on the device: nothing crosses from the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.head_stats.reference import HeadStats
from talkies.kernels.launch import EXACT, block_of

CHUNK = 128  # rows of a program
BLOCK = 1024  # channels of a program, whatever their heads
UNROLL = 4  # rows that are read before the first is used
CHUNKS_AT_ONCE = 16  # of the second kernel
PARTS = 5  # sum, least and largest of the keys; largest magnitude of queries and of values


@triton.jit(do_not_specialize=["start", "stop"])
def head_stats_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    start,
    stop,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    head_dim,
    num_channels,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(1)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_c = c < num_channels
    head, channel = c // head_dim, c % head_dim
    q_ptr += head * q_head_stride + channel
    k_ptr += head * k_head_stride + channel
    v_ptr += head * v_head_stride + channel
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    low = tl.full((BLOCK,), float("inf"), dtype=tl.float32)
    high = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    q_largest = tl.zeros((BLOCK,), dtype=tl.float32)
    v_largest = tl.zeros((BLOCK,), dtype=tl.float32)
    first = start + chunk * CHUNK
    for base in range(0, CHUNK, UNROLL):
        for i in tl.static_range(UNROLL):
            row = (first + base + i).to(tl.int64)
            mask = in_c & (row < stop)
            q = tl.load(q_ptr + row * q_row_stride, mask=mask, other=0.0).to(tl.float32)
            k = tl.load(k_ptr + row * k_row_stride, mask=mask, other=0.0).to(tl.float32)
            v = tl.load(v_ptr + row * v_row_stride, mask=mask, other=0.0).to(tl.float32)
            total += k
            low = tl.minimum(low, tl.where(mask, k, float("inf")))
            high = tl.maximum(high, tl.where(mask, k, float("-inf")))
            q_largest = tl.maximum(q_largest, tl.abs(q))
            v_largest = tl.maximum(v_largest, tl.abs(v))
    out = out_ptr + chunk * PARTS * num_channels + c
    tl.store(out, total, mask=in_c)
    tl.store(out + num_channels, low, mask=in_c)
    tl.store(out + 2 * num_channels, high, mask=in_c)
    tl.store(out + 3 * num_channels, q_largest, mask=in_c)
    tl.store(out + 4 * num_channels, v_largest, mask=in_c)


@triton.jit(do_not_specialize=["num_rows", "num_chunks"])
def reduce_kernel(
    parts_ptr,
    largest_ptr,
    mean_ptr,
    largest_stride,
    num_rows,
    num_chunks,
    num_channels,
    head_dim,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a head: all chunks of a document, ``CHUNKS`` at a time."""
    head = tl.program_id(0)
    c = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((CHUNKS, BLOCK), dtype=tl.float32)
    low = tl.full((CHUNKS, BLOCK), float("inf"), dtype=tl.float32)
    high = tl.full((CHUNKS, BLOCK), float("-inf"), dtype=tl.float32)
    q_largest = tl.zeros((CHUNKS, BLOCK), dtype=tl.float32)
    v_largest = tl.zeros((CHUNKS, BLOCK), dtype=tl.float32)
    for first in range(0, num_chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)[:, None]
        mask = (chunk < num_chunks) & (c < head_dim)
        part = parts_ptr + chunk * PARTS * num_channels + head * head_dim + c
        total += tl.load(part, mask=mask, other=0.0)
        low = tl.minimum(low, tl.load(part + num_channels, mask=mask, other=float("inf")))
        high = tl.maximum(high, tl.load(part + 2 * num_channels, mask=mask, other=float("-inf")))
        q_largest = tl.maximum(q_largest, tl.load(part + 3 * num_channels, mask=mask, other=0.0))
        v_largest = tl.maximum(v_largest, tl.load(part + 4 * num_channels, mask=mask, other=0.0))
    mean = tl.sum(total, axis=0, keep_dims=True) / num_rows
    # A channel is farthest from its mean at its extremes.
    above = tl.max(high, axis=0, keep_dims=True) - mean
    below = mean - tl.min(low, axis=0, keep_dims=True)
    k_largest = tl.where(c < head_dim, tl.maximum(above, below), 0.0)
    tl.store(mean_ptr + head * head_dim + c, mean, mask=c < head_dim)
    tl.store(largest_ptr + head, tl.max(tl.max(q_largest, axis=1), axis=0))
    tl.store(largest_ptr + largest_stride + head, tl.max(tl.max(k_largest, axis=1), axis=0))
    tl.store(largest_ptr + 2 * largest_stride + head, tl.max(tl.max(v_largest, axis=1), axis=0))


def head_stats(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, spans: Sequence[tuple[int, int]]) -> HeadStats:
    _, num_heads, head_dim = k_SNH.shape
    assert q_SNH.stride(2) == k_SNH.stride(2) == v_SNH.stride(2) == 1
    largest_3BN = torch.empty(3, len(spans), num_heads, dtype=torch.float32, device=q_SNH.device)
    mean_BNH = torch.empty(len(spans), num_heads, head_dim, dtype=torch.float32, device=q_SNH.device)
    num_channels = num_heads * head_dim
    for document, (start, stop) in enumerate(spans):
        parts, num_chunks = _parts(q_SNH, k_SNH, v_SNH, start, stop)
        reduce_kernel[(num_heads,)](
            parts,
            largest_3BN[:, document],
            mean_BNH[document],
            largest_3BN.stride(0),
            stop - start,
            num_chunks,
            num_channels,
            head_dim,
            PARTS=PARTS,
            CHUNKS=CHUNKS_AT_ONCE,
            BLOCK=block_of(head_dim),
            num_warps=4,
            **EXACT,
        )
    q_largest, k_largest, v_largest = largest_3BN.unbind()
    return HeadStats(q_largest, k_largest, v_largest, mean_BNH)


def _parts(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, start: int, stop: int) -> tuple[Tensor, int]:
    """What the programs of one document found, float32 [chunks, PARTS, N * H], and the number of chunks."""
    _, num_heads, head_dim = k_SNH.shape
    num_channels, num_chunks = num_heads * head_dim, triton.cdiv(stop - start, CHUNK)
    parts = torch.empty(num_chunks, PARTS, num_channels, dtype=torch.float32, device=q_SNH.device)
    block = min(BLOCK, block_of(num_channels))
    head_stats_kernel[(triton.cdiv(num_channels, block), num_chunks)](
        q_SNH,
        k_SNH,
        v_SNH,
        parts,
        start,
        stop,
        q_SNH.stride(0),
        q_SNH.stride(1),
        k_SNH.stride(0),
        k_SNH.stride(1),
        v_SNH.stride(0),
        v_SNH.stride(1),
        head_dim,
        num_channels,
        PARTS=PARTS,
        CHUNK=CHUNK,
        UNROLL=UNROLL,
        BLOCK=block,
        num_warps=4,
        **EXACT,
    )
    return parts, num_chunks
