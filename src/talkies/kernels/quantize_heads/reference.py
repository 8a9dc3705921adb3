"""Attention operands to e4m3 with a scale per document and head. S rows, N heads, H channels, B documents."""

from __future__ import annotations

from torch import Tensor

from talkies.kernels.fp8 import E4M3, E4M3_MAX


def quantize_heads(x_SNH: Tensor, scale_BN: Tensor, offset_BNH: Tensor | None, document_S: Tensor | None) -> Tensor:
    """``(x - offset[d]) / scale[d]`` as e4m3 [S, N, H], contiguous; ``document_S`` int32, ``None`` for one document."""
    x = x_SNH.float()
    if document_S is None:
        scale, offset = scale_BN[0], None if offset_BNH is None else offset_BNH[0]
    else:
        index = document_S.long()
        scale, offset = scale_BN[index], None if offset_BNH is None else offset_BNH[index]
    if offset is not None:
        x = x - offset
    return (x * (1.0 / scale)[..., None]).clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3).contiguous()
