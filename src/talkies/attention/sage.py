"""SageAttention (package ``sageattention``): 8-bit scores, one call a document. An approximation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from talkies.attention.base import Documents, Exactness, each_document


def load() -> Any:
    """The package's module; raises ``ImportError``."""
    import sageattention

    return sageattention


class Sage:
    """The backend over what :func:`load` returned."""

    # Its kernel is all or nothing: rows of conditions cannot be kept exact, whole steps could not either.
    exactness = Exactness()

    def __init__(self, module: Any) -> None:
        self._sage = module.sageattn

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """Returns [S, N, H], contiguous."""
        return each_document(self._one, q_SNH, k_SNH, v_SNH, documents)

    def _one(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor) -> Tensor:
        return self._sage(q_SNH[None], k_SNH[None], v_SNH[None], tensor_layout="NHD", is_causal=False)[0].contiguous()
