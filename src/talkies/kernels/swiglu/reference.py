"""Gated feed-forward activation (spec 2.2). S rows, F inner channels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(up_S2F: Tensor) -> Tensor:
    """``value * silu(gate)`` of ``[value | gate]`` columns. Returns [S, F]; ``silu`` rounds before the product."""
    value, gate = up_S2F.chunk(2, dim=-1)
    return F.silu(gate).mul_(value)
