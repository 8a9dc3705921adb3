"""The projection to the operands of e4m3 attention. S rows, N heads, H channels a head, A angles, B documents."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.qk_norm_rope.reference import qk_norm_rope
from talkies.kernels.quantize_heads.reference import quantize_heads


def norm_rope_quantize(
    qkv_S3NH: Tensor,
    norm_q_H: Tensor,
    norm_k_H: Tensor,
    cos_SA: Tensor | None,
    sin_SA: Tensor | None,
    scale_3BN: Tensor,
    k_mean_BNH: Tensor,
    document_S: Tensor | None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``qk_norm_rope``, then ``quantize_heads`` of each. Returns e4m3 ``(q, k, v)``, each [S, N, H], contiguous.

    Scales and mean are those of ``qkv_scales``; ``document_S`` as in ``quantize_heads``. The projection stays as it is.
    """
    q, k, v = qk_norm_rope(qkv_S3NH, norm_q_H, norm_k_H, cos_SA, sin_SA, eps=eps)
    return (
        quantize_heads(q, scale_3BN[0], None, document_S),
        quantize_heads(k, scale_3BN[1], k_mean_BNH, document_S),
        quantize_heads(v, scale_3BN[2], None, document_S),
    )
