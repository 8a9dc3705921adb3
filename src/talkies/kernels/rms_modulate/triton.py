"""``rms_modulate`` in one pass: a program a row. See the reference for what it computes and where it rounds."""

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
def rms_modulate_kernel(
    x_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    entry_ptr,
    out_ptr,
    out_scale_ptr,
    x_stride,
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
    a, in_a, b, in_b = split_lanes(num_channels, BLOCK, TAIL)
    xa = tl.load(x_ptr + row * x_stride + a, mask=in_a, other=0.0).to(tl.float32)
    xb = xa
    if TAIL > 0:
        xb = tl.load(x_ptr + row * x_stride + b, mask=in_b, other=0.0).to(tl.float32)
    norm_split_row(
        xa, xb, weight_ptr, shift_ptr + table, scale_ptr + table, out_ptr, out_scale_ptr, row, out_stride,
        a, in_a, b, in_b, num_channels, eps, T, FP8, TAIL, MODULATED,
    )  # fmt: skip


def rms_modulate(
    x_SD: Tensor,
    weight_D: Tensor,
    shift_TD: Tensor | None,
    scale_TD: Tensor | None,
    runs: RowRuns,
    *,
    eps: float,
    dtype: torch.dtype | None = None,
) -> Tensor | Fp8Rows:
    num_rows, num_channels = x_SD.shape
    assert runs.num_rows == num_rows, (runs.num_rows, num_rows)
    assert x_SD.stride(1) == 1
    out, out_scale = new_rows(x_SD, num_channels, dtype)
    tables = [table for table in (shift_TD, scale_TD) if table is not None]
    modulated = len(tables) == 2
    if num_rows:
        block, tail = split_row(num_channels)
        rms_modulate_kernel[(num_rows,)](
            x_SD,
            weight_D,
            shift_TD if modulated else weight_D,
            scale_TD if modulated else weight_D,
            runs.index(x_SD.device),
            out,
            out if out_scale is None else out_scale,
            x_SD.stride(0),
            check_tables(*tables) if modulated else 0,
            out.stride(0),
            num_channels,
            eps,
            FP8=out_scale is not None,
            BLOCK=block,
            TAIL=tail,
            MODULATED=modulated,
            num_warps=warps_of(block, quantized=out_scale is not None),
            **EXACT,
        )
    return rows_or_fp8(out, out_scale, x_SD.dtype)
