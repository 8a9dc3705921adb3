"""Per-head RMSNorm of queries and keys, then rotary on their first channels.

S rows, N heads, H channels a head, A angles (3 axes x frequencies; 2A <= H channels turn, the rest pass).
"""

from __future__ import annotations

import torch
from torch import Tensor


def qk_norm_rope(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ``(q, k, v)``, each [S, N, H]; ``v`` is a view of the input, untouched.

    The norm is computed in float32 and rounds before rotary; each rotary product and the sum round. Channel ``c``
    of the first A pairs with ``c + A`` (rotate-half). Without ``cos`` there is no rotary (text refiner).
    """
    qk_S2NH = qkv_S3NH[:, :2].float()
    scale = torch.rsqrt(qk_S2NH.square().mean(-1, keepdim=True).add_(eps))
    weight_2H = torch.stack((norm_q_H, norm_k_H))[:, None]
    normed = (qk_S2NH * scale).mul_(weight_2H).to(qkv_S3NH.dtype)
    if cos_SA is not None:
        assert sin_SA is not None
        num_angles = cos_SA.shape[-1]
        cos, sin = cos_SA[:, None, None], sin_SA[:, None, None]
        a, b = normed[..., :num_angles], normed[..., num_angles : 2 * num_angles]
        turned_a = (a * cos).sub_(b * sin)
        turned_b = (b * cos).add_(a * sin)
        a.copy_(turned_a)
        b.copy_(turned_b)
    return normed[:, 0], normed[:, 1], qkv_S3NH[:, 2]
