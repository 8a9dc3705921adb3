"""Attention through ``torch.nn.functional.scaled_dot_product_attention``: the reference backend, on any device."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from talkies.attention.base import Documents, each_document


def sdpa(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
    """One SDPA call a document; torch chooses the kernel. Returns [S, N, H], contiguous."""
    return each_document(_one, q_SNH, k_SNH, v_SNH, documents)


def cudnn(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
    """The same through cuDNN alone. It plans each new shape for up to a second, then runs it fast."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return each_document(_cudnn, q_SNH, k_SNH, v_SNH, documents)


def _cudnn(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
    if k_SNH.shape[0] == 1:  # cuDNN refuses a single key, whose weight is one
        return v_SNH.contiguous()
    return _one(q_SNH, k_SNH, v_SNH)


def _one(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_SNH, k_SNH, v_SNH))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).contiguous()
