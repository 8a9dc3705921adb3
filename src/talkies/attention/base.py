"""How rows meet: the attend contract and the documents it honours (spec 2.7).

S rows of one packed sequence, N heads, H channels a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """Rows ``cu_seqlens[i] .. cu_seqlens[i + 1]`` attend to each other and to nothing else.

    ``num_rows`` counts every row of the sequence; rows from ``cu_seqlens[-1]`` on are structural padding, which
    belongs to no document.
    """

    cu_seqlens: tuple[int, ...]
    num_rows: int
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.cu_seqlens[0] == 0
        assert self.cu_seqlens[-1] <= self.num_rows
        assert all(a < b for a, b in pairwise(self.cu_seqlens)), "an empty document"

    @classmethod
    def of_lengths(cls, lengths: Iterable[int], num_rows: int | None = None) -> Documents:
        cu_seqlens = tuple(accumulate((n for n in lengths if n), initial=0))
        return cls(cu_seqlens, cu_seqlens[-1] if num_rows is None else num_rows)

    @property
    def num_valid(self) -> int:
        return self.cu_seqlens[-1]

    @property
    def num_documents(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def max_seqlen(self) -> int:
        return max(b - a for a, b in self)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yields ``(start, stop)`` of each document."""
        return iter(pairwise(self.cu_seqlens))

    def trimmed(self) -> Documents | None:
        """The same documents over the valid rows alone; ``None`` when that is a single document."""
        if self.num_documents == 1:
            return None
        return self if self.num_valid == self.num_rows else Documents(self.cu_seqlens, self.num_valid)

    def cu_seqlens_on(self, device: torch.device) -> Tensor:
        """``cu_seqlens`` as int32 on ``device``, made once per device."""
        if device not in self._on_device:
            self._on_device[device] = torch.tensor(self.cu_seqlens, dtype=torch.int32, device=device)
        return self._on_device[device]


class Attend(Protocol):
    """Full, non-causal attention inside each document, softmax scale H^-0.5."""

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """Returns [S, N, H]. ``documents=None``: all rows are one document."""
        ...


class Trimmed:
    """Cuts structural padding before a backend and fills its rows with zeros after: no kernel sees a padding row.

    Padding rows may hold anything, NaN included; zeros come back because the rows still flow through norms and
    matrix products.
    """

    def __init__(self, backend: Attend) -> None:
        self.backend = backend

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        if documents is None:
            return self.backend(q_SNH, k_SNH, v_SNH, None)
        assert q_SNH.shape[0] == documents.num_rows, (tuple(q_SNH.shape), documents)
        valid, inner = documents.num_valid, documents.trimmed()
        if valid == documents.num_rows:
            return self.backend(q_SNH, k_SNH, v_SNH, inner)
        out_SNH = q_SNH.new_zeros(q_SNH.shape)
        out_SNH[:valid] = self.backend(q_SNH[:valid], k_SNH[:valid], v_SNH[:valid], inner)
        return out_SNH
