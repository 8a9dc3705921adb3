"""``qk_norm_rope`` in one pass over the fused projection: a program a row, queries and keys of all heads.

Queries and keys are written back where they lay, so the attention layout [S, N, H] is a view of the projection and
nothing is allocated. Rotation pairs channel c with c + A, so a head is loaded in three parts: first A, next A, rest.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.launch import EXACT, rotary_of

HEADS = 16  # at a time; queries and keys of the released model are 7 x 16


@triton.jit
def qk_norm_rope_kernel(
    qkv_ptr,
    norm_q_ptr,
    norm_k_ptr,
    cos_ptr,
    sin_ptr,
    row_stride,
    kind_stride,
    head_stride,
    num_heads,
    head_dim,
    eps,
    NUM_ANGLES: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    T: tl.constexpr = qkv_ptr.dtype.element_ty
    a = tl.arange(0, BLOCK_A)
    r = tl.arange(0, BLOCK_R)
    in_a = a < NUM_ANGLES
    in_r = r < REST
    if NUM_ANGLES > 0:
        cos = tl.load(cos_ptr + row * NUM_ANGLES + a, mask=in_a, other=1.0).to(tl.float32)[None, :]
        sin = tl.load(sin_ptr + row * NUM_ANGLES + a, mask=in_a, other=0.0).to(tl.float32)[None, :]
        wa_q = tl.load(norm_q_ptr + a, mask=in_a, other=0.0).to(tl.float32)[None, :]
        wb_q = tl.load(norm_q_ptr + NUM_ANGLES + a, mask=in_a, other=0.0).to(tl.float32)[None, :]
        wa_k = tl.load(norm_k_ptr + a, mask=in_a, other=0.0).to(tl.float32)[None, :]
        wb_k = tl.load(norm_k_ptr + NUM_ANGLES + a, mask=in_a, other=0.0).to(tl.float32)[None, :]
    if REST > 0:
        wr_q = tl.load(norm_q_ptr + 2 * NUM_ANGLES + r, mask=in_r, other=0.0).to(tl.float32)[None, :]
        wr_k = tl.load(norm_k_ptr + 2 * NUM_ANGLES + r, mask=in_r, other=0.0).to(tl.float32)[None, :]
    for first in range(0, 2 * num_heads, HEADS):
        head = first + tl.arange(0, HEADS)
        is_key = (head >= num_heads)[:, None]
        valid = (head < 2 * num_heads)[:, None]
        kind = (head >= num_heads).to(tl.int64)
        base = qkv_ptr + row * row_stride + kind * kind_stride + (head - kind * num_heads) * head_stride
        base = base[:, None]
        square = tl.zeros((HEADS,), dtype=tl.float32)
        if NUM_ANGLES > 0:
            mask_a = valid & in_a[None, :]
            xa = tl.load(base + a[None, :], mask=mask_a, other=0.0).to(tl.float32)
            xb = tl.load(base + NUM_ANGLES + a[None, :], mask=mask_a, other=0.0).to(tl.float32)
            square += tl.sum(xa * xa + xb * xb, axis=1)
        if REST > 0:
            mask_r = valid & in_r[None, :]
            xr = tl.load(base + 2 * NUM_ANGLES + r[None, :], mask=mask_r, other=0.0).to(tl.float32)
            square += tl.sum(xr * xr, axis=1)
        factor = tl.div_rn(1.0, tl.sqrt_rn(square / head_dim + eps))[:, None]
        if NUM_ANGLES > 0:
            na = (xa * factor * tl.where(is_key, wa_k, wa_q)).to(T).to(tl.float32)
            nb = (xb * factor * tl.where(is_key, wb_k, wb_q)).to(T).to(tl.float32)
            ya = (na * cos).to(T).to(tl.float32) - (nb * sin).to(T).to(tl.float32)
            yb = (nb * cos).to(T).to(tl.float32) + (na * sin).to(T).to(tl.float32)
            tl.store(base + a[None, :], ya.to(T), mask=mask_a)
            tl.store(base + NUM_ANGLES + a[None, :], yb.to(T), mask=mask_a)
        if REST > 0:
            nr = xr * factor * tl.where(is_key, wr_k, wr_q)
            tl.store(base + 2 * NUM_ANGLES + r[None, :], nr.to(T), mask=mask_r)


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
        qk_norm_rope_kernel[(num_rows,)](
            qkv_S3NH,
            norm_q_H,
            norm_k_H,
            rotary.cos,
            rotary.sin,
            qkv_S3NH.stride(0),
            qkv_S3NH.stride(1),
            qkv_S3NH.stride(2),
            num_heads,
            head_dim,
            eps,
            **rotary.constants,
            HEADS=HEADS,
            num_warps=4,
            **EXACT,
        )
    q, k, v = qkv_S3NH.unbind(1)
    return q, k, v
