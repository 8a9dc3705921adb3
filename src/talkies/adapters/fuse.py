"""Weights with adapters in them, summed where tensors are read: before shards, fp8 and the AdaLN tables.

So whatever becomes of a weight later is made of the sum, and nothing later knows of adapters. A sum is taken in float32
of the stored weight and rounded once, to the dtype that the weight would have had without it. A tensor that no adapter
changes takes the way that it takes without adapters, bit for bit.

N outputs, K inputs, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.adapters.read import Changes, LowRank, Piece
from talkies.errors import CheckpointError
from talkies.files.tensor_files import TensorFiles
from talkies.model.cuts import Cut
from talkies.model.modulation import Affine
from talkies.model.weights import DiTReader, NamedTensors


@dataclass(frozen=True, slots=True)
class Applied:
    """One adapter of a DiT, counted ``strength`` times."""

    name: str
    changes: Changes
    strength: float


class FusedTensors(NamedTensors):
    """The tensors of ``source`` with ``adapters`` in them, in the order given.

    ``source`` hands out tensors as they are stored, and ``dtype`` is what they become (``None``: as stored; float32
    islands stay float32). Sums are taken on ``device`` (``None``: on the CPU) and left there. Raises
    ``CheckpointError`` for a sum that overflows.
    """

    def __init__(
        self,
        source: DiTReader,
        adapters: Sequence[Applied],
        *,
        dtype: torch.dtype | None,
        device: torch.device | None = None,
    ) -> None:
        assert source.dtype is None, "a sum of what was rounded before is rounded twice"
        self.source, self.adapters = source, tuple(adapters)
        self.config, self.dtype, self.device = source.config, dtype, device

    def with_strengths(self, strengths: Mapping[str, float]) -> FusedTensors:
        """The same files; adapters count as ``strengths`` says, in its order, and those it does not name not at all."""
        by_name = {one.name: one for one in self.adapters}
        chosen = [Applied(name, by_name[name].changes, s) for name, s in strengths.items() if name in by_name]
        chosen += [Applied(one.name, one.changes, 0.0) for one in self.adapters if one.name not in strengths]
        return FusedTensors(self.source, chosen, dtype=self.dtype, device=self.device)

    @property
    def files(self) -> TensorFiles:
        """The checkpoint's."""
        return self.source.files

    def changed_by(self, names: Sequence[str]) -> set[str]:
        """Tensors, by our names, that one of the adapters ``names`` is about."""
        return {tensor for one in self.adapters if one.name in names for tensor in one.changes.pieces}

    def tensor(self, name: str) -> Tensor:
        return self._fused(name, self.source.tensor(name), None)

    def part(self, name: str, cut: Cut) -> Tensor:
        return self._fused(name, self.source.part(name, cut), cut)

    def top(self, *, adaln: bool = True) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.source.top(adaln=adaln):
            yield name, self._fused(name, tensor, None)

    def block(self, index: int, *, adaln: bool = True) -> dict[str, Tensor]:
        tensors = self.source.block(index, adaln=adaln)
        return {name: self._fused(f"blocks.{index}.{name}", tensor, None) for name, tensor in tensors.items()}

    def block_adaln(self, block: int) -> Affine:
        stored = self.source.block_adaln(block)
        return Affine(*(self._fused(f"blocks.{block}.adaln.{leaf}", t, None) for leaf, t in stored._asdict().items()))

    def _fused(self, name: str, stored: Tensor, cut: Cut | None) -> Tensor:
        dtype = torch.float32 if self.source.specs[name].island else self.dtype or stored.dtype
        changing = [one for one in self.adapters if one.strength and name in one.changes.pieces]
        if not changing:
            return stored.to(dtype)
        # A new tensor in any case: what is stored may be a view of the file.
        total = stored.to(self.device or stored.device, torch.float32, copy=True)
        for one in changing:
            for piece in one.changes.pieces[name]:
                _apply(total, one, name, piece, cut)
        fused = total.to(dtype)
        if not bool(torch.isfinite(fused).all()):
            names = " and ".join(one.name for one in changing)
            raise CheckpointError(
                f"{name} overflows {str(dtype).removeprefix('torch.')} with {names}",
                hint="use a smaller strength",
                param="adapters",
            )
        return fused


def _apply(total: Tensor, one: Applied, name: str, piece: Piece, cut: Cut | None) -> None:
    """Changes ``total``, all of a tensor or its share ``cut``, in place."""
    if isinstance(piece, LowRank):
        up_NR = one.changes.ours(name, piece.up).to(total.device, torch.float32)
        down_RK = one.changes.files.tensor(piece.down).to(total.device, torch.float32)
        for out, rows, columns in _shares(total, piece.row, up_NR.shape[0], cut):
            out.addmm_(up_NR[rows], down_RK[:, columns], alpha=piece.scale * one.strength)
        return
    given = one.changes.ours(name, piece.key).to(total.device, torch.float32)
    for out, rows, columns in _shares(total, piece.row, given.shape[0], cut):
        share = given[rows] if given.ndim == 1 else given[rows, columns]
        if not piece.sets:
            out.add_(share, alpha=one.strength)
        elif one.strength == 1.0:
            out.copy_(share)
        else:
            out.lerp_(share, one.strength)


def _shares(total: Tensor, row: int, num_rows: int, cut: Cut | None) -> Iterator[tuple[Tensor, slice, slice]]:
    """``(where in total, which rows, which columns)`` of a piece of ``num_rows`` rows that begins at ``row`` of the
    whole tensor."""
    if cut is not None and cut.axis == 1:
        at = 0
        for start, stop in cut.spans:
            yield total[row : row + num_rows, at : at + stop - start], slice(None), slice(start, stop)
            at += stop - start
        return
    at = 0
    for start, stop in ((0, total.shape[0]),) if cut is None else cut.spans:
        first, last = max(start, row), min(stop, row + num_rows)
        if first < last:
            yield total[at + first - start : at + last - start], slice(first - row, last - row), slice(None)
        at += stop - start
