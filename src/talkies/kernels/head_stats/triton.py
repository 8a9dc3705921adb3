"""``head_stats`` in one pass: a program a head and a few hundred rows; the partial results are reduced by torch.

No atomics: two runs give the same bits. A program finds its rows from the documents' bounds on the device: a list of
chunks from the host would cross in every block of every step, and a CUDA graph could not hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.head_stats.reference import HeadStats, largest_from
from talkies.kernels.launch import EXACT, block_of

CHUNK = 512  # rows of a program
ROWS = 32  # at a time


@triton.jit
def head_stats_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    bounds_ptr,
    num_documents,
    num_rows,
    largest_ptr,
    keys_ptr,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    num_heads,
    head_dim,
    DOCUMENTS: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    start = chunk * CHUNK
    stop = tl.minimum(start + CHUNK, num_rows)
    if DOCUMENTS:
        # Chunks end where documents end: count each document's until this one's is reached.
        left = chunk
        for document in range(num_documents):
            first_row = tl.load(bounds_ptr + document)
            last_row = tl.load(bounds_ptr + document + 1)
            count = (last_row - first_row + CHUNK - 1) // CHUNK
            inside = (left >= 0) & (left < count)
            start = tl.where(inside, first_row + left * CHUNK, start)
            stop = tl.where(inside, tl.minimum(first_row + left * CHUNK + CHUNK, last_row), stop)
            left -= count
    c = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    low = tl.full((BLOCK,), float("inf"), dtype=tl.float32)
    high = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    q_largest = tl.zeros((BLOCK,), dtype=tl.float32)
    v_largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(start, stop, ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        mask = (row < stop) & (c < head_dim)[None, :]
        q = tl.load(q_ptr + row * q_row_stride + head * q_head_stride + c[None, :], mask=mask, other=0.0)
        k = tl.load(k_ptr + row * k_row_stride + head * k_head_stride + c[None, :], mask=mask, other=0.0)
        v = tl.load(v_ptr + row * v_row_stride + head * v_head_stride + c[None, :], mask=mask, other=0.0)
        k = k.to(tl.float32)
        total += tl.sum(k, axis=0)
        low = tl.minimum(low, tl.min(tl.where(mask, k, float("inf")), axis=0))
        high = tl.maximum(high, tl.max(tl.where(mask, k, float("-inf")), axis=0))
        q_largest = tl.maximum(q_largest, tl.max(tl.abs(q.to(tl.float32)), axis=0))
        v_largest = tl.maximum(v_largest, tl.max(tl.abs(v.to(tl.float32)), axis=0))
    place = chunk * num_heads + head
    tl.store(largest_ptr + 2 * place, tl.max(q_largest, axis=0))
    tl.store(largest_ptr + 2 * place + 1, tl.max(v_largest, axis=0))
    out = keys_ptr + place * 3 * head_dim + c
    tl.store(out, total, mask=c < head_dim)
    tl.store(out + head_dim, low, mask=c < head_dim)
    tl.store(out + 2 * head_dim, high, mask=c < head_dim)


def head_stats(
    q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, spans: Sequence[tuple[int, int]], bounds: Tensor | None = None
) -> HeadStats:
    num_rows, num_heads, head_dim = k_SNH.shape
    assert q_SNH.stride(2) == k_SNH.stride(2) == v_SNH.stride(2) == 1
    assert bounds is not None or list(spans) == [(0, num_rows)], "several documents need their bounds on the device"
    counts = [-(-(b - a) // CHUNK) for a, b in spans]
    num_chunks, device = sum(counts), q_SNH.device
    largest = torch.empty(num_chunks, num_heads, 2, dtype=torch.float32, device=device)
    keys = torch.empty(num_chunks, num_heads, 3, head_dim, dtype=torch.float32, device=device)
    head_stats_kernel[(num_chunks, num_heads)](
        q_SNH,
        k_SNH,
        v_SNH,
        largest if bounds is None else bounds,
        len(spans),
        num_rows,
        largest,
        keys,
        q_SNH.stride(0),
        q_SNH.stride(1),
        k_SNH.stride(0),
        k_SNH.stride(1),
        v_SNH.stride(0),
        v_SNH.stride(1),
        num_heads,
        head_dim,
        DOCUMENTS=bounds is not None,
        CHUNK=CHUNK,
        ROWS=ROWS,
        BLOCK=block_of(head_dim),
        num_warps=4,
        **EXACT,
    )
    parts = list(zip(largest.split(counts), keys.split(counts), spans, strict=True))
    mean = torch.stack([k[:, :, 0].sum(0) / (b - a) for _, k, (a, b) in parts])
    low = torch.stack([k[:, :, 1].amin(0) for _, k, _ in parts])
    high = torch.stack([k[:, :, 2].amax(0) for _, k, _ in parts])
    most = torch.stack([m.amax(0) for m, _, _ in parts])
    return HeadStats(most[..., 0], largest_from(low, high, mean), most[..., 1], mean)
