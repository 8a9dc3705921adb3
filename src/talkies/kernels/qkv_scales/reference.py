"""The scales of e4m3 attention, from the projection. S rows, N heads, H channels a head, A angles, B documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from talkies.kernels.fp8 import E4M3_MAX, MIN_SCALE
from talkies.kernels.head_stats.reference import head_stats
from talkies.kernels.qk_norm_rope.reference import qk_norm_rope


class QkvScales(NamedTuple):
    """float32, contiguous. Scales of queries, keys less their mean, and values; the mean of the keys."""

    scale_3BN: Tensor
    k_mean_BNH: Tensor


def qkv_scales(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    spans: Sequence[tuple[int, int]],
    *,
    eps: float,
) -> QkvScales:
    """For queries and keys as ``qk_norm_rope`` makes them, over the rows ``start .. stop`` of each document.

    What 448 stands for is the largest magnitude of a head's keys and values, but a bound of its queries, which are not
    read: a head has the norm sqrt(H) when it leaves RMSNorm, turning keeps that, and so no channel is larger than
    sqrt(H) times the largest weight. e4m3 is a floating-point format, in which a looser scale costs no digits.
    """
    _, k, v = qk_norm_rope(qkv_S3NH, norm_q_H, norm_k_H, cos_SA, sin_SA, eps=eps)
    stats = head_stats(k, k, v, spans)
    q_largest = (norm_q_H.float().abs().amax() * math.sqrt(norm_q_H.shape[0])).expand_as(stats.k_largest_BN)
    largest_3BN = torch.stack((q_largest, stats.k_largest_BN, stats.v_largest_BN))
    return QkvScales((largest_3BN * (1.0 / E4M3_MAX)).clamp_(min=MIN_SCALE), stats.k_mean_BNH)
