"""Residual sum with a gate per run of rows. S rows, D channels, T table entries."""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.kernels.runs import RowRuns


def gate_residual(
    x_SD: Tensor, branch_SD: Tensor, gate_TD: Tensor, runs: RowRuns, *, out: Tensor | None = None
) -> Tensor:
    """``x + gate[r] * branch``. Consumes ``branch``; the result [S, D] takes its memory, or ``out`` (``x`` may be it).

    The product and the sum round each to the dtype of ``x``. Without ``out``, the stream before the block stays
    intact, because step caches compare it with the stream after. A ``branch`` of another dtype (the video decoder's: a
    float32 stream, 16-bit branches) has no room for the result: then ``out`` is due, and ``branch`` stays as it was.
    """
    if branch_SD.dtype != x_SD.dtype:
        assert out is not None, (x_SD.dtype, branch_SD.dtype)
        branch_SD = branch_SD.to(x_SD.dtype)
    for start, stop, entry in runs:
        branch_SD[start:stop].mul_(gate_TD[entry])
    return torch.add(x_SD, branch_SD, out=branch_SD if out is None else out)
