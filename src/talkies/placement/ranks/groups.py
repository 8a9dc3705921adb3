"""The process groups of a mesh, and the collectives that its parts need.

Each is called through :meth:`Peers.together`, so that a rank which failed or left ends the others by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from talkies.placement.ranks.mesh import Axis, Mesh, share_bounds
from talkies.placement.ranks.peers import Peers

# Newer torch warns of the first name.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Group:
    """The ranks along one axis: ``rank`` of ``size`` of them is this one."""

    def __init__(self, peers: Peers, ranks: Sequence[int], group: dist.ProcessGroup) -> None:
        self._peers, self.group = peers, group
        self.rank, self.size = list(ranks).index(peers.rank), len(ranks)

    def exchange(self, given: Tensor, to_each: Sequence[int], from_each: Sequence[int], what: str) -> Tensor:
        """Rows of ``given`` [sum(to_each), ...], ``to_each[i]`` of them in order to rank i, are answered by
        ``from_each[i]`` rows from rank i. Returns [sum(from_each), ...]. Any count may be 0."""
        taken = given.new_empty(sum(from_each), *given.shape[1:])
        self._peers.together(
            what,
            lambda: dist.all_to_all_single(taken, given, list(from_each), list(to_each), group=self.group),
        )
        return taken

    def gathered(self, mine: Tensor, lengths: Sequence[int], what: str) -> list[Tensor]:
        """Every rank's flat tensor, of ``lengths`` values, in order."""
        room = mine.new_zeros(max(lengths))
        room[: mine.shape[0]] = mine
        found = mine.new_empty(self.size * room.shape[0])
        self._peers.together(what, lambda: _gather(found, room, group=self.group))
        return [part[:length] for part, length in zip(found.view(self.size, -1), lengths, strict=True)]

    def summed(self, part: Tensor, what: str) -> None:
        """``part`` becomes the sum of all ranks' parts, in place."""
        self._peers.together(what, lambda: dist.all_reduce(part, group=self.group))


class RankGroups:
    """One rank's groups. Collective to make: all ranks make them in the same order."""

    def __init__(self, mesh: Mesh, peers: Peers, timeout: timedelta | None = None, *, num_text: int = 1) -> None:
        """``num_text`` ranks, the first ones, share the text encoder."""
        assert mesh.size == peers.world, (mesh, peers.world)
        self.mesh, self.peers = mesh, peers
        self.place, self.share = mesh.places[peers.rank], mesh.share_of(peers.rank)
        self.rows, self.ring, self.ulysses, self.tensor = (
            self._join(axis, timeout) for axis in ("rows", "ring", "ulysses", "tensor")
        )
        self.text = self._group_of(range(num_text), timeout)  # None: this rank has nothing of the encoder

    def _join(self, axis: Axis, timeout: timedelta | None) -> Group:
        mine: Group | None = None
        for ranks in self.mesh.groups(axis):
            mine = self._group_of(ranks, timeout) or mine
        assert mine is not None
        return mine

    def _group_of(self, ranks: Sequence[int], timeout: timedelta | None) -> Group | None:
        """For those that are in it."""
        # A group of one talks to nobody, and that of all is there already.
        whole = len(ranks) in (1, self.peers.world)
        group = self.peers.group if whole else dist.new_group(list(ranks), timeout=timeout)
        if self.peers.rank not in ranks:
            return None
        assert isinstance(group, dist.ProcessGroup)
        return Group(self.peers, ranks, group)

    def span(self, num_rows: int) -> tuple[int, int]:
        """``(start, stop)`` of this rank's rows of a sequence."""
        bounds = share_bounds(num_rows, self.mesh.num_shares)
        return bounds[self.share], bounds[self.share + 1]

    def agree(self, values: Sequence[int], what: str) -> list[list[int]]:
        """Every rank's whole numbers (64 bits), by rank: what one of them knows and others do not. On the host."""
        mine = torch.tensor(values, dtype=torch.int64)
        found = torch.empty(self.peers.world * len(values), dtype=torch.int64)
        self.peers.together(what, lambda: _gather(found, mine, group=self.peers.group))
        return [list(map(int, row)) for row in found.view(self.peers.world, -1)]

    def total(self, values: Tensor) -> Tensor:
        """The sum of all ranks' values, the same bits on each. Collective."""
        found = values.clone()
        self.peers.together("ranks summed what they saw", lambda: dist.all_reduce(found, group=self.peers.group))
        return found
