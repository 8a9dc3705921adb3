"""Approximate skipping of forwards, whole or in part: the contract of a policy.

A policy stands between a step and the blocks. It is given the rows that enter the blocks and a way to run them, and
returns what comes out: it may run all blocks, some of them, or none. It must decide the same on every rank: a rank that
skips alone hangs the collectives of the others. Where ranks share rows it is given its rank's alone, S of them: what it
decides by must be reduced over the ranks first.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from talkies.h3.packing import PackedLayout
from talkies.model.runner import BlockRun


class StepCache(Protocol):
    """State of one request."""

    def begin(self, layout: PackedLayout, num_forwards: int) -> None:
        """Called once, before the first forward."""
        ...

    def forward(self, step: int, x_SD: Tensor, run: BlockRun) -> Tensor:
        """The rows [S, D] that leave the blocks in forward ``step`` (from 0).

        ``x_SD`` [S, D] is the embedded sequence; ``run(x, start, stop)`` runs blocks, ``run.modulation`` is what they
        are modulated with, ``run.num_blocks`` how many there are.
        """
        ...
