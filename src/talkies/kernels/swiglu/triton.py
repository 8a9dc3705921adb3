"""``swiglu`` in one pass: tiles of a row, or whole rows where each needs its own fp8 scale. See the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import store_row
from talkies.kernels.fp8 import E4M3, Fp8Rows
from talkies.kernels.launch import EXACT, block_of, new_rows, rows_or_fp8, warps_of

TILE = 4096


@triton.jit
def swiglu_kernel(
    up_ptr, out_ptr, out_scale_ptr, up_stride, out_stride, num_inner, FP8: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < num_inner
    T: tl.constexpr = up_ptr.dtype.element_ty
    value = tl.load(up_ptr + row * up_stride + c, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(up_ptr + row * up_stride + num_inner + c, mask=mask, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(T).to(tl.float32)
    y = (activated * value).to(T).to(tl.float32)
    store_row(y, out_ptr, out_scale_ptr, row, out_stride, c, mask, FP8)


def swiglu(up_S2F: Tensor, *, dtype: torch.dtype | None = None) -> Tensor | Fp8Rows:
    num_rows, num_inner = up_S2F.shape[0], up_S2F.shape[1] // 2
    assert up_S2F.stride(1) == 1
    out, out_scale = new_rows(up_S2F, num_inner, dtype)
    if num_rows:
        block = block_of(num_inner) if dtype == E4M3 else min(TILE, block_of(num_inner))
        swiglu_kernel[(num_rows, triton.cdiv(num_inner, block))](
            up_S2F,
            out,
            out if out_scale is None else out_scale,
            up_S2F.stride(0),
            out.stride(0),
            num_inner,
            FP8=out_scale is not None,
            BLOCK=block,
            num_warps=warps_of(2 * block, quantized=out_scale is not None),
            **EXACT,
        )
    return rows_or_fp8(out, out_scale, up_S2F.dtype)
