"""Which modulation entry each row uses, as contiguous runs.

Rows of one modality and one noise level sit next to each other, so a request of 58,758 rows has three runs.
A run is one broadcast, where an index would gather [S, D] six times in every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowRuns:
    """Rows ``bounds[i] .. bounds[i + 1]`` use entry ``entries[i]`` of a table. ``bounds`` starts at 0."""

    bounds: tuple[int, ...]
    entries: tuple[int, ...]
    _index: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _cuts: dict[tuple[int, int], RowRuns] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert len(self.bounds) == len(self.entries) + 1
        assert self.bounds[0] == 0
        assert all(a < b for a, b in pairwise(self.bounds)), "an empty run"

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int]]) -> RowRuns:
        """From ``(num_rows, entry)`` in row order; empty runs vanish and equal neighbours merge."""
        bounds, entries = [0], list[int]()
        for num_rows, entry in runs:
            if num_rows == 0:
                continue
            if entries and entries[-1] == entry:
                bounds[-1] += num_rows
            else:
                bounds.append(bounds[-1] + num_rows)
                entries.append(entry)
        return cls(tuple(bounds), tuple(entries))

    @property
    def num_rows(self) -> int:
        return self.bounds[-1]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yields ``(start, stop, entry)``."""
        return iter(zip(self.bounds, self.bounds[1:], self.entries, strict=False))

    def cut(self, start: int, stop: int) -> RowRuns:
        """The runs of rows ``start .. stop``, counted from ``start``: one rank's share, or one chunk of a block.

        Made once; its index is a view of this one's where that exists, so that a chunk costs no copy to a device.
        """
        if (start, stop) not in self._cuts:
            cut = RowRuns.of((max(0, min(stop, b) - max(start, a)), entry) for a, b, entry in self)
            cut._index.update({device: index[start:stop] for device, index in self._index.items()})
            self._cuts[start, stop] = cut
        return self._cuts[start, stop]

    def index(self, device: torch.device) -> Tensor:
        """Entry of every row, int32 [S] on ``device``; made once per device (kernels read it, references do not)."""
        if device not in self._index:
            lengths = torch.tensor([b - a for a, b, _ in self])
            entries = torch.tensor(self.entries, dtype=torch.int32)
            self._index[device] = entries.repeat_interleave(lengths).to(device)
        return self._index[device]
