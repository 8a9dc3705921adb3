"""``head_stats`` in one pass: a program a thousand channels of a hundred rows; torch reduces the partial results.

Rows of a program are read one after another, each as one long piece, so memory is read in order. No atomics: two runs
give the same bits. A launch a document and no table on the device: nothing crosses from the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.head_stats.reference import HeadStats, largest_from
from talkies.kernels.launch import EXACT, block_of

CHUNK = 128  # rows of a program
BLOCK = 1024  # channels of a program, whatever their heads
UNROLL = 4  # rows that are read before the first is used
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


def head_stats(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, spans: Sequence[tuple[int, int]]) -> HeadStats:
    assert q_SNH.stride(2) == k_SNH.stride(2) == v_SNH.stride(2) == 1
    found = [_of_document(q_SNH, k_SNH, v_SNH, a, b) for a, b in spans]
    return HeadStats(*(torch.stack(column) for column in zip(*found, strict=True)))


def _of_document(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
    """The fields of :class:`HeadStats`, without their document axis."""
    _, num_heads, head_dim = k_SNH.shape
    num_channels, num_chunks = num_heads * head_dim, triton.cdiv(stop - start, CHUNK)
    parts = torch.empty(num_chunks, PARTS, num_heads, head_dim, dtype=torch.float32, device=q_SNH.device)
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
    mean = parts[:, 0].sum(0) / (stop - start)
    largest = parts[:, 3:].amax(0).amax(-1)
    return largest[0], largest_from(parts[:, 1].amin(0), parts[:, 2].amax(0), mean), largest[1], mean
