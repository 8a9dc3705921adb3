"""``quantize_rows`` in one pass: a program a row. See the reference."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import store_row
from talkies.kernels.fp8 import E4M3, Fp8Rows
from talkies.kernels.launch import block_of, new_rows, warps_of


@triton.jit
def quantize_rows_kernel(x_ptr, out_ptr, out_scale_ptr, x_stride, out_stride, num_channels, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < num_channels
    x = tl.load(x_ptr + row * x_stride + c, mask=mask, other=0.0).to(tl.float32)
    store_row(x, out_ptr, out_scale_ptr, row, out_stride, c, mask, True)


def quantize_rows(x_SK: Tensor) -> Fp8Rows:
    num_rows, num_channels = x_SK.shape
    assert x_SK.stride(1) == 1
    out, scale = new_rows(x_SK, num_channels, E4M3)
    assert scale is not None
    if num_rows:
        block = block_of(num_channels)
        quantize_rows_kernel[(num_rows,)](
            x_SK, out, scale, x_SK.stride(0), out.stride(0), num_channels, BLOCK=block, num_warps=warps_of(block)
        )
    return Fp8Rows(out.to(E4M3), scale, x_SK.dtype)
