"""The polynomial through the last few values, at a point beyond them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def weights(points: Sequence[float], at: float) -> list[float]:
    """Lagrange's: what each value counts at ``at``. One point: the value itself is reused."""
    found = []
    for i, own in enumerate(points):
        weight = 1.0
        for j, other in enumerate(points):
            if i != j:
                weight *= (at - other) / (own - other)
        found.append(weight)
    return found


def extrapolated(points: Sequence[float], values: Sequence[Tensor], at: float) -> Tensor:
    """A tensor like ``values``, computed in float32; of one point, its value itself."""
    if len(points) == 1:
        return values[0]
    total = torch.zeros_like(values[0], dtype=torch.float32)
    for weight, value in zip(weights(points, at), values, strict=True):
        total.add_(value, alpha=weight)
    return total.to(values[0].dtype)
