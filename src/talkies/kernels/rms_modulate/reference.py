"""RMSNorm, then one (scale, shift) pair per run of rows.

S rows, D channels, T table entries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.kernels.fp8 import E4M3, Fp8Rows
from talkies.kernels.quantize_rows.reference import quantize_rows
from talkies.kernels.runs import RowRuns


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
    """``rms_norm(x) * (1 + scale[r]) + shift[r]``. Returns a new [S, D] in ``dtype`` (that of ``x`` if ``None``).

    The norm accumulates in float32 and rounds once; ``1 + scale``, the product and the sum round each, as the
    checkpoint was run, all to the dtype of ``x``. Only then is the result cast, or quantised where ``dtype`` is e4m3.
    Without ``shift`` and ``scale`` it is the norm alone (the video decoder's).
    """
    h_SD = F.rms_norm(x_SD, (x_SD.shape[-1],), weight_D, eps)
    if shift_TD is None or scale_TD is None:
        return cast(h_SD, dtype)
    for start, stop, entry in runs:
        h_SD[start:stop].mul_(1 + scale_TD[entry]).add_(shift_TD[entry])
    return cast(h_SD, dtype)


def cast(x_SD: Tensor, dtype: torch.dtype | None) -> Tensor | Fp8Rows:
    """What the last step of a fused producer does to its rounded result."""
    if dtype == E4M3:
        return quantize_rows(x_SD)
    return x_SD if dtype is None else x_SD.to(dtype)
