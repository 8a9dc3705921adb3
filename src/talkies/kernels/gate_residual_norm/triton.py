"""``gate_residual_norm`` in one pass: the sum is written once and never read back. See the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from talkies.kernels.device import norm_split_row, split_lanes
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.launch import EXACT, check_tables, new_rows, rows_or_fp8, split_row, warps_of
from talkies.kernels.runs import RowRuns


@triton.jit
def gate_residual_norm_kernel(
    x_ptr,
    branch_ptr,
    gate_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    entry_ptr,
    sum_ptr,
    out_ptr,
    out_scale_ptr,
    x_stride,
    branch_stride,
    sum_stride,
    table_stride,
    out_stride,
    num_channels,
    eps,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    MODULATED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    T: tl.constexpr = x_ptr.dtype.element_ty
    table = tl.load(entry_ptr + row).to(tl.int64) * table_stride
    x_ptr += row * x_stride
    branch_ptr += row * branch_stride
    sum_ptr += row * sum_stride
    a, in_a, b, in_b = split_lanes(num_channels, BLOCK, TAIL)
    ta = gated_sum(x_ptr, branch_ptr, gate_ptr + table, sum_ptr, a, in_a, T)
    tb = ta
    if TAIL > 0:
        tb = gated_sum(x_ptr, branch_ptr, gate_ptr + table, sum_ptr, b, in_b, T)
    norm_split_row(
        ta, tb, weight_ptr, shift_ptr + table, scale_ptr + table, out_ptr, out_scale_ptr, row, out_stride,
        a, in_a, b, in_b, num_channels, eps, T, FP8, TAIL, MODULATED,
    )  # fmt: skip


@triton.jit
def gated_sum(x_ptr, branch_ptr, gate_ptr, sum_ptr, c, mask, T: tl.constexpr):
    """Some channels of ``x + gate * branch``, stored at ``sum``: over ``branch``, say. Returns them as float32."""
    x = tl.load(x_ptr + c, mask=mask, other=0.0).to(tl.float32)
    branch = tl.load(branch_ptr + c, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + c, mask=mask, other=0.0).to(tl.float32)
    product = (gate * branch).to(T).to(tl.float32)
    total = (x + product).to(T)
    tl.store(sum_ptr + c, total, mask=mask)
    return total.to(tl.float32)


def gate_residual_norm(
    x_SD: Tensor,
    branch_SD: Tensor,
    gate_TD: Tensor,
    weight_D: Tensor,
    shift_TD: Tensor | None,
    scale_TD: Tensor | None,
    runs: RowRuns,
    *,
    eps: float,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | Fp8Rows]:
    num_rows, num_channels = x_SD.shape
    assert runs.num_rows == num_rows == branch_SD.shape[0], (runs.num_rows, num_rows, branch_SD.shape)
    sum_SD = branch_SD if out is None else out
    assert x_SD.stride(1) == branch_SD.stride(1) == sum_SD.stride(1) == 1
    assert x_SD.dtype == sum_SD.dtype, (x_SD.dtype, sum_SD.dtype)
    normed, scale = new_rows(x_SD, num_channels, dtype)
    tables = [table for table in (shift_TD, scale_TD) if table is not None]
    modulated = len(tables) == 2
    if num_rows:
        block, tail = split_row(num_channels)
        gate_residual_norm_kernel[(num_rows,)](
            x_SD,
            branch_SD,
            gate_TD,
            weight_D,
            shift_TD if modulated else weight_D,
            scale_TD if modulated else weight_D,
            runs.index(x_SD.device),
            sum_SD,
            normed,
            normed if scale is None else scale,
            x_SD.stride(0),
            branch_SD.stride(0),
            sum_SD.stride(0),
            check_tables(gate_TD, *tables),
            normed.stride(0),
            num_channels,
            eps,
            FP8=scale is not None,
            BLOCK=block,
            TAIL=tail,
            MODULATED=modulated,
            num_warps=warps_of(block, quantized=scale is not None),
            **EXACT,
        )
    return sum_SD, rows_or_fp8(normed, scale, x_SD.dtype)
