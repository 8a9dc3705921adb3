"""Ranks that are threads of one process: what they exchange goes through a list, so that meshes are tested in
milliseconds. Processes with gloo are in ``tests/placement/rank_processes.py``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from talkies.placement.ranks.mesh import Mesh


class ThreadGroup:
    """As ``groups.Group``, of a thread. ``calls`` are what it exchanged, and how many rows it sent each time."""

    def __init__(self, rank, size, meeting):
        self.rank, self.size, self.calls = rank, size, []
        self._barrier, self._given = meeting

    def exchange(self, given, to_each, from_each, what):
        assert given.shape[0] == sum(to_each)
        self.calls.append((what, sum(n for i, n in enumerate(to_each) if i != self.rank)))
        self._given[self.rank] = given.split(list(to_each))
        self._barrier.wait()
        taken = [self._given[other][self.rank].clone() for other in range(self.size)]
        self._barrier.wait()
        assert [part.shape[0] for part in taken] == list(from_each)
        return torch.cat(taken)


def groups_of(mesh: Mesh) -> list[SimpleNamespace]:
    """What attention needs of every rank's ``RankGroups``."""
    made: dict[tuple[str, tuple[int, ...]], tuple] = {}

    def group(axis, rank):
        (ranks,) = (ranks for ranks in mesh.groups(axis) if rank in ranks)
        meeting = made.setdefault((axis, tuple(ranks)), (threading.Barrier(len(ranks), timeout=30), {}))
        return ThreadGroup(list(ranks).index(rank), len(ranks), meeting)

    return [
        SimpleNamespace(mesh=mesh, place=mesh.places[r], ring=group("ring", r), ulysses=group("ulysses", r))
        for r in range(mesh.size)
    ]


def together(work, groups):
    """``work(groups)`` of every rank, each in its thread; what they return, by rank."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(work, groups))
