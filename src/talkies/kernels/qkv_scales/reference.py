"""The scales of e4m3 attention, from the projection. S rows, N heads, H channels a head, A angles, B documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from talkies.kernels.fp8 import scale_of
from talkies.kernels.qk_norm_rope.reference import qk_norm_rope

# Keys of a document that its mean is taken from: the first and each seventh after it. An odd number, so that pictures
# whose width is a power of two lend all of their columns.
EVERY = 7


class QkvScales(NamedTuple):
    """float32, contiguous. Scales of queries, keys less their mean, and values; a mean of the keys."""

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

    Softmax does not see what all keys lose, so what they lose need not be their very mean: it is that of each
    ``EVERY``-th. What 448 stands for is the largest magnitude of a head's values, but a bound of queries and keys,
    which are not read: a head has the norm sqrt(H) when it leaves RMSNorm, turning keeps that, and so no channel is
    larger than sqrt(H) times the largest weight. e4m3 is a floating-point format, in which a looser scale costs no
    digits.
    """
    sampled = torch.cat([torch.arange(start, stop, EVERY, device=qkv_S3NH.device) for start, stop in spans])
    cos, sin = (None, None) if cos_SA is None or sin_SA is None else (cos_SA[sampled], sin_SA[sampled])
    _, k, _ = qk_norm_rope(qkv_S3NH[sampled], norm_q_H, norm_k_H, cos, sin, eps=eps)
    keys = k.split([len(range(start, stop, EVERY)) for start, stop in spans])
    mean = torch.stack([x.mean(0, dtype=torch.float32) for x in keys])
    q_bound, k_bound = (norm.float().abs().amax() * math.sqrt(norm.shape[0]) for norm in (norm_q_H, norm_k_H))
    k_largest = k_bound + mean.abs().amax(-1)
    v_largest = torch.stack([qkv_S3NH[start:stop, 2].abs().amax((0, 2)) for start, stop in spans]).float()
    return QkvScales(scale_of(torch.stack((q_bound.expand_as(k_largest), k_largest, v_largest))), mean)
