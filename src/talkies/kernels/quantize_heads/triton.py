"""``quantize_heads`` in one pass: a program a row, all heads of it. See the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import to_e4m3
from talkies.kernels.fp8 import E4M3
from talkies.kernels.launch import EXACT, block_of, stored

HEADS = 16  # at a time


@triton.jit
def quantize_heads_kernel(
    x_ptr,
    scale_ptr,
    offset_ptr,
    document_ptr,
    out_ptr,
    x_row_stride,
    x_head_stride,
    num_heads,
    head_dim,
    OFFSET: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    document = tl.program_id(0) * 0
    if DOCUMENTS:
        document = tl.load(document_ptr + row)
    c = tl.arange(0, BLOCK)[None, :]
    for first in range(0, num_heads, HEADS):
        head = first + tl.arange(0, HEADS)
        mask = (head[:, None] < num_heads) & (c < head_dim)
        x = tl.load(x_ptr + row * x_row_stride + head[:, None] * x_head_stride + c, mask=mask, other=0.0)
        x = x.to(tl.float32)
        place = document * num_heads + head
        if OFFSET:
            x -= tl.load(offset_ptr + place[:, None] * head_dim + c, mask=mask, other=0.0)
        scale = tl.load(scale_ptr + place, mask=head < num_heads, other=1.0)
        y = to_e4m3(x, tl.div_rn(1.0, scale)[:, None])
        out = out_ptr + (row * num_heads + head[:, None]) * head_dim + c
        tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)


def quantize_heads(x_SNH: Tensor, scale_BN: Tensor, offset_BNH: Tensor | None, document_S: Tensor | None) -> Tensor:
    num_rows, num_heads, head_dim = x_SNH.shape
    assert x_SNH.stride(2) == 1
    assert scale_BN.is_contiguous()
    assert offset_BNH is None or offset_BNH.is_contiguous()
    out = torch.empty(x_SNH.shape, dtype=stored(E4M3, x_SNH.device), device=x_SNH.device)
    if num_rows:
        quantize_heads_kernel[(num_rows,)](
            x_SNH,
            scale_BN,
            scale_BN if offset_BNH is None else offset_BNH,
            scale_BN if document_S is None else document_S,
            out,
            x_SNH.stride(0),
            x_SNH.stride(1),
            num_heads,
            head_dim,
            OFFSET=offset_BNH is not None,
            DOCUMENTS=document_S is not None,
            HEADS=HEADS,
            BLOCK=block_of(head_dim),
            num_warps=4,
            **EXACT,
        )
    return out.to(E4M3)
