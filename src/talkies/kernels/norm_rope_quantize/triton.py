"""``norm_rope_quantize`` in one pass over the projection: a program some heads of some rows.

What belongs to a head is loaded once for all rows of a program. Programs of queries and keys come first, then those of
values.
"""

from __future__ import annotations

import torch
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
    to_e4m3,
)
from talkies.kernels.fp8 import E4M3
from talkies.kernels.launch import EXACT, block_of, rotary_of, rows_of, stored

HEADS = 4  # of a program
ROWS = 32  # of a program, if there are many
STAGES = 3  # rows on their way while one is worked on, and that one


@triton.jit(do_not_specialize=["num_rows"])
def norm_rope_quantize_kernel(
    qkv_ptr,
    norm_q_ptr,
    norm_k_ptr,
    cos_ptr,
    sin_ptr,
    scale_ptr,
    mean_ptr,
    document_ptr,
    out_ptr,
    row_stride,
    kind_stride,
    head_stride,
    scale_stride,
    out_stride,
    num_rows,
    num_heads,
    head_dim,
    eps,
    DOCUMENTS: tl.constexpr,
    NUM_ANGLES: tl.constexpr,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    group = tl.program_id(0)
    groups_of_qk = tl.cdiv(2 * num_heads, HEADS)
    start = tl.program_id(1).to(tl.int64) * ROWS
    stop = tl.minimum(start + ROWS, num_rows)
    out_row = num_heads * head_dim
    if group < groups_of_qk:
        head, is_key, in_heads = queries_and_keys(group, num_heads, HEADS)
        first, second, in_pairs = pairs_of_head(NUM_ANGLES, PAIRS, BLOCK_P)
        mask = in_pairs & in_heads
        kind = is_key.to(tl.int64)
        heads = qkv_ptr + kind * kind_stride + head * head_stride
        out = out_ptr + kind * out_stride + head * head_dim
        scales = scale_ptr + kind * scale_stride + head
        means = mean_ptr + head * head_dim
        wa, wb = load_pairs(tl.where(is_key, norm_k_ptr, norm_q_ptr), first, second, mask)
        ma, mb = load_pairs(means, first, second, mask & is_key)
        inverse = tl.div_rn(1.0, tl.load(scales, mask=in_heads, other=1.0))
        for row in tl.range(start, stop, num_stages=STAGES):
            xa, xb = load_pairs(heads + row * row_stride, first, second, mask)
            cos, sin = angles_of_row(cos_ptr, sin_ptr, row, head, NUM_ANGLES, BLOCK_P)
            if DOCUMENTS:
                document = tl.load(document_ptr + row) * num_heads
                ma, mb = load_pairs(means + document * head_dim, first, second, mask & is_key)
                inverse = tl.div_rn(1.0, tl.load(scales + document, mask=in_heads, other=1.0))
            ya, yb = norm_and_turn(xa, xb, wa, wb, cos, sin, head_dim, eps, T, NUM_ANGLES)
            ya, yb = to_e4m3(ya - ma, inverse), to_e4m3(yb - mb, inverse)
            store_pairs(out + row * out_row, ya, yb, first, second, mask)
    else:
        v_head = (group - groups_of_qk) * HEADS + tl.arange(0, HEADS)[:, None]
        c = tl.arange(0, BLOCK)[None, :]
        in_v_heads = v_head < num_heads
        in_v = in_v_heads & (c < head_dim)
        v_heads = qkv_ptr + 2 * kind_stride.to(tl.int64) + v_head * head_stride + c
        v_out = out_ptr + 2 * out_stride.to(tl.int64) + v_head * head_dim + c
        v_scales = scale_ptr + 2 * scale_stride + v_head
        v_inverse = tl.div_rn(1.0, tl.load(v_scales, mask=in_v_heads, other=1.0))
        for row in tl.range(start, stop, num_stages=STAGES):
            if DOCUMENTS:
                document = tl.load(document_ptr + row) * num_heads
                v_inverse = tl.div_rn(1.0, tl.load(v_scales + document, mask=in_v_heads, other=1.0))
            v = tl.load(v_heads + row * row_stride, mask=in_v, other=0.0)
            y = to_e4m3(v.to(tl.float32), v_inverse)
            tl.store(v_out + row * out_row, y.to(out_ptr.dtype.element_ty), mask=in_v)


def norm_rope_quantize(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    scale_3BN: Tensor,
    k_mean_BNH: Tensor,
    document_S: Tensor | None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, _, num_heads, head_dim = qkv_S3NH.shape
    assert qkv_S3NH.stride(3) == 1
    assert scale_3BN.is_contiguous()
    assert k_mean_BNH.is_contiguous()
    rotary = rotary_of(cos_SA, sin_SA, num_rows, head_dim, otherwise=norm_k_H)
    kind = stored(E4M3, qkv_S3NH.device)
    out_3SNH = torch.empty(3, num_rows, num_heads, head_dim, dtype=kind, device=qkv_S3NH.device)
    if num_rows:
        groups = triton.cdiv(2 * num_heads, HEADS) + triton.cdiv(num_heads, HEADS)
        rows = rows_of(num_rows, groups, ROWS)
        norm_rope_quantize_kernel[(groups, triton.cdiv(num_rows, rows))](
            qkv_S3NH,
            norm_q_H,
            norm_k_H,
            rotary.cos,
            rotary.sin,
            scale_3BN,
            k_mean_BNH,
            scale_3BN if document_S is None else document_S,
            out_3SNH,
            qkv_S3NH.stride(0),
            qkv_S3NH.stride(1),
            qkv_S3NH.stride(2),
            scale_3BN.stride(0),
            out_3SNH.stride(0),
            num_rows,
            num_heads,
            head_dim,
            eps,
            **rotary.constants,
            DOCUMENTS=document_S is not None,
            HEADS=HEADS,
            ROWS=rows,
            STAGES=STAGES,
            BLOCK=block_of(head_dim),
            num_warps=1,
            **EXACT,
        )
    q, k, v = out_3SNH.to(E4M3).unbind(0)
    return q, k, v
