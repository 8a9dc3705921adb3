"""A gated residual sum and the modulated norm that follows it, in one pass. S rows, D channels, T table entries."""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.gate_residual.reference import gate_residual
from talkies.kernels.rms_modulate.reference import rms_modulate
from talkies.kernels.runs import RowRuns


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
    """``y = gate_residual(x, branch)`` and ``rms_modulate(y)``, with the rounding points of the two.

    Consumes ``branch``: its memory holds ``y``, and ``x`` is left as it was; or ``out`` (``x`` may be it) holds ``y``.
    ``out`` is due where ``branch`` has another dtype than ``x``. Without ``shift`` and ``scale`` nothing is modulated.
    """
    y_SD = gate_residual(x_SD, branch_SD, gate_TD, runs, out=out)
    return y_SD, rms_modulate(y_SD, weight_D, shift_TD, scale_TD, runs, eps=eps, dtype=dtype)
