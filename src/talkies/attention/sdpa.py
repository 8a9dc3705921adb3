"""Attention through ``torch.nn.functional.scaled_dot_product_attention``: the reference backend, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.attention.base import Documents


def sdpa(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
    """One SDPA call a document. Returns [S, N, H], contiguous."""
    if documents is None:
        return _one(q_SNH, k_SNH, v_SNH)
    return torch.cat([_one(q_SNH[a:b], k_SNH[a:b], v_SNH[a:b]) for a, b in documents])


def _one(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_SNH, k_SNH, v_SNH))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).contiguous()
