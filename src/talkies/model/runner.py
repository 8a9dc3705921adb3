"""What runs the blocks of a DiT, as values that are handed to a step.

:meth:`PackedDiT.run_blocks` is the plain one. ``placement/apply.py`` puts others around it: a graph that replays it, a
rank that leads others through it. The DiT is never changed by them, and neither knows of the other.

S rows, L text rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from talkies.attention.base import Documents
from talkies.h3.spans import Spans, SpansShare
from talkies.model.block import RowView
from talkies.model.modulation import StepModulation


class BlockRunner(Protocol):
    """Runs blocks ``start .. stop`` of one DiT over rows ``x_SD``. Returns a new [S, D]; ``x_SD`` is left as it was."""

    def __call__(
        self, x_SD: Tensor, view: RowView, modulation: StepModulation, start: int = 0, stop: int | None = None
    ) -> Tensor: ...


class TextRefiner(Protocol):
    """Encoder states [L, text_dim] -> refined text [L, D], once a request: see :meth:`PackedDiT.refine_text`."""

    def __call__(self, states_LT: Tensor, documents: Documents | None = None) -> Tensor: ...


class Sharing(Protocol):
    """Which rows of a forward are this rank's, where several ranks each have some of them (S rows of the sequence)."""

    def share(self, spans: Spans) -> SpansShare:
        """This rank's rows of a sequence."""
        ...

    def gathered(self, video_rows: Tensor, audio_rows: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Projected rows of this rank's share -> those of the whole sequence, of all ranks in order. Collective."""
        ...


@dataclass(frozen=True, slots=True)
class Runner:
    """All that a request needs to have run of one DiT, wherever its weights are and however many ranks have a share.

    With ``sharing``, ``blocks`` takes this rank's rows, and their view and modulation, cut; ``None``: all rows.
    ``total`` sums a few values over all ranks, so that all decide alike by them; one rank's are its own.
    """

    blocks: BlockRunner
    refine_text: TextRefiner
    sharing: Sharing | None = None
    total: Callable[[Tensor], Tensor] = lambda values: values


@dataclass(frozen=True, slots=True)
class BlockRun:
    """The blocks of one forward, with the view and the modulation that they need. ``first_row``: which row of the
    sequence is the first of this rank's.

    ``run(x)`` is the whole forward. ``run(x, 0, 4)`` and ``run(x, 4)`` are its first four blocks and the rest: the
    parts may be called in turn, and one that is not called costs nothing.
    """

    blocks: BlockRunner
    view: RowView
    modulation: StepModulation
    num_blocks: int
    first_row: int = 0

    def __call__(self, x_SD: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Returns [S, D]; ``x_SD`` is left as it was."""
        return self.blocks(x_SD, self.view, self.modulation, start, stop)
