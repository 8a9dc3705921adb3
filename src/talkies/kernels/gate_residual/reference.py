"""Residual sum with a gate per run of rows (spec 2.2). S rows, D channels, T table entries."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.runs import RowRuns


def gate_residual(x_SD: Tensor, branch_SD: Tensor, gate_TD: Tensor, runs: RowRuns) -> Tensor:
    """``x + gate[r] * branch``. Consumes ``branch`` (its memory holds the result [S, D]); ``x`` is left as it was.

    The product and the sum round each to the tensors' dtype. The stream before the block stays intact because
    step caches compare it with the stream after.
    """
    for start, stop, entry in runs:
        branch_SD[start:stop].mul_(gate_TD[entry])
    return branch_SD.add_(x_SD)
