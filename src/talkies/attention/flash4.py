"""FlashAttention-4 (package ``flash-attn-4``, CuTe; Blackwell and Hopper), one call a document."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from talkies.attention.base import Attend, Documents, each_document


def load() -> Any:
    """The package's module; raises ``ImportError``."""
    from flash_attn import cute

    return cute


def flash4(module: Any) -> Attend:
    """The backend over what :func:`load` returned."""

    def one(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
        result = module.flash_attn_func(q_SNH[None], k_SNH[None], v_SNH[None])
        return (result[0] if isinstance(result, tuple) else result)[0]

    def attend(q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        return each_document(one, q_SNH, k_SNH, v_SNH, documents)

    return attend
