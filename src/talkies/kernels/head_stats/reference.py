"""What scaling attention operands to e4m3 must know of them. S rows, N heads, H channels, B documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class HeadStats(NamedTuple):
    """float32. Largest magnitudes of queries, of keys less their mean, of values; the mean of the keys."""

    q_largest_BN: Tensor
    k_largest_BN: Tensor
    v_largest_BN: Tensor
    k_mean_BNH: Tensor


def head_stats(
    q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, spans: Sequence[tuple[int, int]], bounds: Tensor | None = None
) -> HeadStats:
    """Over the rows ``start .. stop`` of each document in ``spans``, which follow each other from row 0.

    ``bounds``: the same as int32 [B + 1] on the device, for kernels; ``None`` when one document is all rows.
    """
    mean = torch.stack([k_SNH[a:b].mean(0, dtype=torch.float32) for a, b in spans])
    low, high = (torch.stack([getattr(k_SNH[a:b], kind)(0) for a, b in spans]).float() for kind in ("amin", "amax"))
    return HeadStats(
        torch.stack([_largest(q_SNH[a:b]) for a, b in spans]),
        largest_from(low, high, mean),
        torch.stack([_largest(v_SNH[a:b]) for a, b in spans]),
        mean,
    )


def _largest(x_SNH: Tensor) -> Tensor:
    return x_SNH.abs().amax((0, 2)).float()


def largest_from(low_BNH: Tensor, high_BNH: Tensor, mean_BNH: Tensor) -> Tensor:
    """``max|x - mean|`` of each head without making it: a channel is farthest from its mean at its extremes."""
    return torch.maximum(high_BNH - mean_BNH, mean_BNH - low_BNH).amax(-1)
