"""Attention over a part of the keys, with the size of its softmax: parts of one row are then merged exactly.

For queries that see their keys in several turns (``placement/ranks/ring.py``). S queries, K keys, N heads, H channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from talkies.errors import ConfigError

# (q [S, N, H], k [K, N, H], v [K, N, H]) -> float32 or block dtype [S, N, H], log-sum-exp float32 [S, N]
PartialAttend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def sdpa_partial(q_SNH: Tensor, k_KNH: Tensor, v_KNH: Tensor) -> tuple[Tensor, Tensor]:
    """Torch's own flash attention, which is what ``sdpa`` takes where it can; the entry that also gives the size."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q_SNH, k_KNH, v_KNH))
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


PARTIAL: dict[str, PartialAttend] = {"sdpa": sdpa_partial}


def partial_of(name: str) -> PartialAttend:
    """The way of backend ``name``. Raises ``ConfigError`` with those that have one."""
    if name not in PARTIAL:
        raise ConfigError(
            f"ring_degree needs an attention that gives its log-sum-exp, and attention={name} does not here",
            hint=f"use attention={' or '.join(PARTIAL)}, or ulysses_degree in place of ring_degree",
            param="ring_degree",
        )
    return PARTIAL[name]


class Merged:
    """The attention of some rows, as parts of their keys come in: float32 sums that do not overflow."""

    def __init__(self, q_SNH: Tensor) -> None:
        """For these queries; nothing is kept of them."""
        self._out = torch.zeros(q_SNH.shape, dtype=torch.float32, device=q_SNH.device)
        self._lse = torch.full(q_SNH.shape[:2], -torch.inf, dtype=torch.float32, device=q_SNH.device)

    def add(self, start: int, stop: int, out_SNH: Tensor, lse_SN: Tensor) -> None:
        """Rows ``start .. stop`` have seen further keys."""
        old, new = self._lse[start:stop], lse_SN.float()
        both = torch.logaddexp(old, new)
        out = self._out[start:stop]
        out.mul_((old - both).exp_()[..., None]).add_(out_SNH * (new - both).exp_()[..., None])
        old.copy_(both)

    def rows(self, dtype: torch.dtype) -> Tensor:
        """[S, N, H]; rows that saw no key are zero."""
        return self._out.to(dtype)
