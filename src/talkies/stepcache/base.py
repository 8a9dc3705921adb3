"""Approximate skipping of forwards: the contract of a policy.

A policy is asked before each forward and told after each one that ran. It must answer the same on every rank: a rank
that skips alone hangs the collectives of the others.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from talkies.h3.packing import PackedLayout


class StepCache(Protocol):
    """State of one request. ``x_SD`` is the embedded sequence, before the blocks."""

    def begin(self, layout: PackedLayout, num_forwards: int) -> None:
        """Called once, before the first forward."""
        ...

    def decide(self, step: int, x_SD: Tensor) -> bool:
        """Whether to skip the blocks of forward ``step``."""
        ...

    def predict(self, step: int, x_SD: Tensor) -> Tensor:
        """What the blocks would have returned, [S, D]; only after ``decide`` said to skip."""
        ...

    def observe(self, step: int, x_SD: Tensor, out_SD: Tensor) -> None:
        """What the blocks took and returned; only after ``decide`` said to run."""
        ...
