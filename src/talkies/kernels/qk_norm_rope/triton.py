"""``qk_norm_rope`` in one pass over the fused projection: a program some heads of some rows.

Queries and keys are written back where they lay, so the attention layout [S, N, H] is a view of the projection and
nothing is allocated.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import (
    angles_of_row,
    load_pairs,
    norm_and_turn,
    pairs_of_head,
    queries_and_keys,
    store_pairs,
)
from talkies.kernels.launch import EXACT, block_of, rotary_of, rows_of

PAIRS = 1024  # of channels in a program: 16 bytes a thread. 16 heads of the released DiT, 32 of the video decoder
ROWS = 8  # of a program, if there are many


@triton.jit(do_not_specialize=["num_rows"])
def qk_norm_rope_kernel(
    qkv_ptr,
    norm_q_ptr,
    norm_k_ptr,
    cos_ptr,
    sin_ptr,
    row_stride,
    kind_stride,
    head_stride,
    num_rows,
    num_heads,
    head_dim,
    eps,
    NUM_ANGLES: tl.constexpr,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    head, is_key, in_heads = queries_and_keys(tl.program_id(0), num_heads, HEADS)
    first, second, in_pairs = pairs_of_head(NUM_ANGLES, PAIRS, BLOCK_P)
    mask = in_pairs & in_heads
    qkv_ptr += is_key.to(tl.int64) * kind_stride + head * head_stride
    wa, wb = load_pairs(tl.where(is_key, norm_k_ptr, norm_q_ptr), first, second, mask)
    start = tl.program_id(1).to(tl.int64) * ROWS
    for row in range(start, tl.minimum(start + ROWS, num_rows)):
        here = qkv_ptr + row * row_stride
        xa, xb = load_pairs(here, first, second, mask)
        cos, sin = angles_of_row(cos_ptr, sin_ptr, row, head, NUM_ANGLES, BLOCK_P)
        ya, yb = norm_and_turn(xa, xb, wa, wb, cos, sin, head_dim, eps, T, NUM_ANGLES)
        store_pairs(here, ya, yb, first, second, mask)


def qk_norm_rope(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, _, num_heads, head_dim = qkv_S3NH.shape
    if 0 in qkv_S3NH.stride()[:3] or qkv_S3NH.stride(3) != 1:
        qkv_S3NH = qkv_S3NH.contiguous()  # an expanded view cannot be written to
    rotary = rotary_of(cos_SA, sin_SA, num_rows, head_dim, otherwise=norm_q_H)
    if num_rows:
        heads = min(PAIRS // rotary.constants["BLOCK_P"], block_of(2 * num_heads))
        groups = triton.cdiv(2 * num_heads, heads)
        rows = rows_of(num_rows, groups, ROWS)
        qk_norm_rope_kernel[(groups, triton.cdiv(num_rows, rows))](
            qkv_S3NH,
            norm_q_H,
            norm_k_H,
            rotary.cos,
            rotary.sin,
            qkv_S3NH.stride(0),
            qkv_S3NH.stride(1),
            qkv_S3NH.stride(2),
            num_rows,
            num_heads,
            head_dim,
            eps,
            **rotary.constants,
            HEADS=heads,
            ROWS=rows,
            num_warps=4,
            **EXACT,
        )
    q, k, v = qkv_S3NH.unbind(1)
    return q, k, v
