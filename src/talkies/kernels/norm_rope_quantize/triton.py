"""``norm_rope_quantize`` in one pass over the projection: a program a row, all heads of it.

A turn is sixteen heads of queries and keys, as in ``qk_norm_rope``, and eight of values; all of its loads come first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import angles_of_row, heads_of_row, norm_and_turn, store_heads, to_e4m3
from talkies.kernels.fp8 import E4M3
from talkies.kernels.launch import EXACT, block_of, rotary_of, stored

HEADS = 16  # of queries and keys at a time


@triton.jit
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
    num_heads,
    head_dim,
    eps,
    DOCUMENTS: tl.constexpr,
    NUM_ANGLES: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    document = tl.program_id(0) * 0
    if DOCUMENTS:
        document = tl.load(document_ptr + row)
    scale_ptr += document * num_heads
    mean_ptr += document * num_heads * head_dim
    qkv_ptr += row * row_stride
    values_ptr = qkv_ptr + 2 * kind_stride.to(tl.int64)
    out_ptr += row * num_heads * head_dim
    v_out_ptr = out_ptr + 2 * out_stride.to(tl.int64)
    h = tl.arange(0, HEADS)[:, None]
    a, r, c = tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK)[None, :]
    cos, sin = angles_of_row(cos_ptr, sin_ptr, row, a, h, NUM_ANGLES)
    for first in range(0, 2 * num_heads, HEADS):
        head = first + h
        in_heads = head < 2 * num_heads
        is_key = head >= num_heads
        kind = is_key.to(tl.int64)
        head -= kind * num_heads
        xa, xb, xr = heads_of_row(qkv_ptr + kind * kind_stride + head * head_stride, a, r, in_heads, NUM_ANGLES, REST)
        v_head = first // 2 + tl.arange(0, HEADS // 2)[:, None]
        in_v = (v_head < num_heads) & (c < head_dim)
        v = tl.load(values_ptr + v_head * head_stride + c, mask=in_v, other=0.0)
        wa, wb, wr = heads_of_row(tl.where(is_key, norm_k_ptr, norm_q_ptr), a, r, in_heads, NUM_ANGLES, REST)
        ma, mb, mr = heads_of_row(mean_ptr + head * head_dim, a, r, in_heads & is_key, NUM_ANGLES, REST)
        scale = tl.load(scale_ptr + kind * scale_stride + head, mask=in_heads, other=1.0)
        v_scale = tl.load(scale_ptr + 2 * scale_stride + v_head, mask=v_head < num_heads, other=1.0)

        ya, yb, yr = norm_and_turn(xa, xb, xr, wa, wb, wr, cos, sin, head_dim, eps, T, NUM_ANGLES, REST)
        inverse = tl.div_rn(1.0, scale)
        ya, yb, yr = to_e4m3(ya - ma, inverse), to_e4m3(yb - mb, inverse), to_e4m3(yr - mr, inverse)
        store_heads(out_ptr + kind * out_stride + head * head_dim, ya, yb, yr, a, r, in_heads, NUM_ANGLES, REST)
        y = to_e4m3(v.to(tl.float32), tl.div_rn(1.0, v_scale))
        tl.store(v_out_ptr + v_head * head_dim + c, y.to(out_ptr.dtype.element_ty), mask=in_v)


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
        norm_rope_quantize_kernel[(num_rows,)](
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
            num_heads,
            head_dim,
            eps,
            **rotary.constants,
            DOCUMENTS=document_S is not None,
            HEADS=HEADS,
            BLOCK=block_of(head_dim),
            num_warps=4,
            **EXACT,
        )
    q, k, v = out_3SNH.to(E4M3).unbind(0)
    return q, k, v
