"""RMSNorm, then one (scale, shift) pair per run of rows (spec 2.2, 2.5).

S rows, D channels, T table entries.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from talkies.kernels.runs import RowRuns


def rms_modulate(
    x_SD: Tensor, weight_D: Tensor, shift_TD: Tensor, scale_TD: Tensor, runs: RowRuns, *, eps: float
) -> Tensor:
    """``rms_norm(x) * (1 + scale[r]) + shift[r]``. Returns a new [S, D] tensor in the dtype of ``x``.

    The norm accumulates in float32 and rounds once; ``1 + scale``, the product and the sum round each, as the
    checkpoint was run.
    """
    h_SD = F.rms_norm(x_SD, (x_SD.shape[-1],), weight_D, eps)
    for start, stop, entry in runs:
        h_SD[start:stop].mul_(1 + scale_TD[entry]).add_(shift_TD[entry])
    return h_SD
