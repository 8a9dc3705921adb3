"""Gated feed-forward activation. S rows, F inner channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.rms_modulate.reference import cast


def swiglu(up_S2F: Tensor, *, dtype: torch.dtype | None = None) -> Tensor | Fp8Rows:
    """``value * silu(gate)`` of ``[value | gate]`` columns. Returns [S, F]; ``silu`` rounds before the product.

    ``dtype`` as in ``rms_modulate``.
    """
    value, gate = up_S2F.chunk(2, dim=-1)
    return cast(F.silu(gate).mul_(value), dtype)
