"""``gate_residual`` in one pass: a program a row. See the reference."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.launch import EXACT, block_of, check_tables, warps_of
from talkies.kernels.runs import RowRuns


@triton.jit
def gate_residual_kernel(
    x_ptr,
    branch_ptr,
    gate_ptr,
    entry_ptr,
    out_ptr,
    x_stride,
    branch_stride,
    gate_stride,
    out_stride,
    num_channels,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < num_channels
    T: tl.constexpr = x_ptr.dtype.element_ty
    entry = tl.load(entry_ptr + row).to(tl.int64)
    x = tl.load(x_ptr + row * x_stride + c, mask=mask, other=0.0).to(tl.float32)
    branch = tl.load(branch_ptr + row * branch_stride + c, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + entry * gate_stride + c, mask=mask, other=0.0).to(tl.float32)
    product = (gate * branch).to(T).to(tl.float32)
    tl.store(out_ptr + row * out_stride + c, (x + product).to(T), mask=mask)


def gate_residual(
    x_SD: Tensor, branch_SD: Tensor, gate_TD: Tensor, runs: RowRuns, *, out: Tensor | None = None
) -> Tensor:
    num_rows, num_channels = x_SD.shape
    assert runs.num_rows == num_rows == branch_SD.shape[0], (runs.num_rows, num_rows, branch_SD.shape)
    out = branch_SD if out is None else out
    assert x_SD.dtype == out.dtype, (x_SD.dtype, out.dtype)
    assert x_SD.stride(1) == branch_SD.stride(1) == out.stride(1) == 1
    if num_rows:
        block = block_of(num_channels)
        gate_residual_kernel[(num_rows,)](
            x_SD,
            branch_SD,
            gate_TD,
            runs.index(x_SD.device),
            out,
            x_SD.stride(0),
            branch_SD.stride(0),
            check_tables(gate_TD),
            out.stride(0),
            num_channels,
            BLOCK=block,
            num_warps=warps_of(block),
            **EXACT,
        )
    return out
