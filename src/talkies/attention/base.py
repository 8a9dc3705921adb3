"""How rows meet: the attend contract and the documents it honours.

S rows of one packed sequence, N heads, H channels a head, A rotary angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from talkies.kernels.select import Ops


@dataclass(frozen=True)
class Documents:
    """Rows ``cu_seqlens[i] .. cu_seqlens[i + 1]`` attend to each other and to nothing else.

    ``num_rows`` counts every row of the sequence; rows from ``cu_seqlens[-1]`` on are structural padding, which
    belongs to no document. ``exact`` are spans of rows whose queries an approximating backend must not approximate;
    others ignore it.
    """

    cu_seqlens: tuple[int, ...]
    num_rows: int
    exact: tuple[tuple[int, int], ...] = ()
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _index: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.cu_seqlens[0] == 0
        assert self.cu_seqlens[-1] <= self.num_rows
        assert all(a < b for a, b in pairwise(self.cu_seqlens)), "an empty document"

    @classmethod
    def of_lengths(cls, lengths: Iterable[int], num_rows: int | None = None) -> Documents:
        """Documents side by side, empty ones left out; ``num_rows`` counts padding behind them, too."""
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
        if self.num_documents == 1 and not self.exact:
            return None
        if self.num_valid == self.num_rows:
            return self
        valid = self.num_valid
        exact = tuple((a, min(b, valid)) for a, b in self.exact if a < valid)
        return self._like(valid, exact)

    def with_exact(self, spans: Iterable[tuple[int, int]]) -> Documents:
        """The same documents with these ``exact`` spans, ``(start, stop)`` in rows of the sequence."""
        return self._like(self.num_rows, tuple(spans))

    def _like(self, num_rows: int, exact: tuple[tuple[int, int], ...]) -> Documents:
        """With the same bounds, and so with what was made of them on a device: that is done once a request."""
        return Documents(self.cu_seqlens, num_rows, exact, self._on_device, self._index)

    def cu_seqlens_on(self, device: torch.device) -> Tensor:
        """``cu_seqlens`` as int32 on ``device``, made once per device."""
        if device not in self._on_device:
            self._on_device[device] = torch.tensor(self.cu_seqlens, dtype=torch.int32, device=device)
        return self._on_device[device]

    def index_on(self, device: torch.device) -> Tensor:
        """Which document each valid row belongs to, int32 [valid rows], made once per device."""
        if device not in self._index:
            lengths = torch.tensor([b - a for a, b in self])
            documents = torch.arange(self.num_documents, dtype=torch.int32)
            self._index[device] = documents.repeat_interleave(lengths).to(device)
        return self._index[device]


def merged(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans in order, without overlaps, neighbours joined."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        elif start < stop:
            out.append((start, stop))
    return tuple(out)


class Attend(Protocol):
    """Full, non-causal attention inside each document, softmax scale H^-0.5."""

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """Returns [S, N, H]. ``documents=None``: all rows are one document."""
        ...


@dataclass(frozen=True, slots=True)
class QkNorm:
    """What queries and keys go through between the projection and attention: a norm a head and, with tables, rotary."""

    norm_q_H: Tensor
    norm_k_H: Tensor
    cos_SA: Tensor | None
    sin_SA: Tensor | None
    eps: float

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As the kernels take them."""
        return self.norm_q_H, self.norm_k_H, self.cos_SA, self.sin_SA

    def first(self, num_rows: int) -> QkNorm:
        """For the first rows alone."""
        if self.cos_SA is None or self.sin_SA is None:
            return self
        return replace(self, cos_SA=self.cos_SA[:num_rows], sin_SA=self.sin_SA[:num_rows])


class AttendProjection(Protocol):
    """:class:`Attend` from the projection on, for a backend whose operands are made of it in one pass."""

    def __call__(self, qkv_S3NH: Tensor, norm: QkNorm, documents: Documents | None) -> Tensor:
        """Returns [S, N, H]. What the projection holds afterwards is not said."""
        ...


def attend_projection(attend: Attend) -> AttendProjection | None:
    """``None`` for a backend, or a wrapper of one, that takes queries, keys and values only."""
    return getattr(attend, "of_projection", None)


def attended(qkv_S3NH: Tensor, norm: QkNorm, documents: Documents | None, attend: Attend, ops: Ops) -> Tensor:
    """From the projection through attention, whichever way ``attend`` goes; the projection is used up.

    Returns [S, N, H].
    """
    of_projection = attend_projection(attend)
    if of_projection is not None:
        return of_projection(qkv_S3NH, norm, documents)
    q, k, v = ops.qk_norm_rope(qkv_S3NH, *norm.tensors, eps=norm.eps)
    return attend(q, k, v, documents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exactness:
    """What an approximating backend computes exactly: forwards at the ends of a run, queries of condition rows."""

    first_steps: int = 0
    last_steps: int = 0
    condition_rows: bool = False

    def whole_step(self, step: int, num_forwards: int) -> bool:
        """Whether forward ``step`` (from 0) of a run is exact as a whole."""
        return step < self.first_steps or step >= num_forwards - self.last_steps


def each_document(
    one: Callable[[Tensor, Tensor, Tensor], Tensor],
    q_SNH: Tensor,
    k_SNH: Tensor,
    v_SNH: Tensor,
    documents: Documents | None,
) -> Tensor:
    """``one`` on every document in turn, for kernels that know no documents. Returns [S, N, H]."""
    if documents is None or documents.num_documents == 1:
        return one(q_SNH, k_SNH, v_SNH)
    return torch.cat([one(q_SNH[a:b], k_SNH[a:b], v_SNH[a:b]) for a, b in documents])


class Trimmed:
    """Cuts structural padding before a backend and fills its rows with zeros after: no kernel sees a padding row.

    Padding rows may hold anything, NaN included; zeros come back because the rows still flow through norms and
    matrix products.
    """

    def __init__(self, backend: Attend, name: str = "") -> None:
        self.backend, self.name = backend, name

    @property
    def exactness(self) -> Exactness | None:
        """``None`` for a backend that approximates nothing."""
        return getattr(self.backend, "exactness", None)

    @property
    def max_rows(self) -> int | None:
        """Rows of one document that the backend is tested for; ``None``: any."""
        return getattr(self.backend, "max_rows", None)

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        return self._trimmed(
            lambda valid, inner: self.backend(q_SNH[:valid], k_SNH[:valid], v_SNH[:valid], inner), q_SNH, documents
        )

    @property
    def of_projection(self) -> AttendProjection | None:
        """``None`` where the backend has none."""
        inner = attend_projection(self.backend)
        return None if inner is None else partial(self._of_projection, inner)

    def _of_projection(
        self, attend: AttendProjection, qkv_S3NH: Tensor, norm: QkNorm, documents: Documents | None
    ) -> Tensor:
        return self._trimmed(
            lambda valid, inner: attend(qkv_S3NH[:valid], norm.first(valid), inner), qkv_S3NH[:, 0], documents
        )

    @staticmethod
    def _trimmed(
        attend: Callable[[int, Documents | None], Tensor], like_SNH: Tensor, documents: Documents | None
    ) -> Tensor:
        """``attend`` on the valid rows, how many they are and their documents given; zeros after them."""
        num_rows = like_SNH.shape[0]
        if documents is None:
            return attend(num_rows, None)
        assert num_rows == documents.num_rows, (tuple(like_SNH.shape), documents)
        valid, inner = documents.num_valid, documents.trimmed()
        if valid == num_rows:
            return attend(valid, inner)
        out_SNH = like_SNH.new_zeros(like_SNH.shape)
        out_SNH[:valid] = attend(valid, inner)
        return out_SNH
