"""Approximate skipping of forwards, whole or in part: the contract of a policy.

A policy belongs to one request. Before a forward it may say what its velocities will be (:meth:`StepCache.velocities`):
then nothing is run. Otherwise it stands between the embedded rows and the blocks (:meth:`StepCache.forward`): it may
have all blocks run, some of them, or none. It asks for blocks and does not call them, so that requests which share a
forward can each decide, and those that run share what they run (``lockstep.py``).

Where several ranks share a request all of them must decide alike: a rank that skips alone hangs the collectives of the
others. What a policy decides by is either the same on all ranks or summed over them first (:attr:`Forward.total`).

S rows of this rank, D hidden; Nv video rows, Na audio rows of the request, condition rows included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.h3.layout import Role
from talkies.h3.packing import PackedLayout
from talkies.model.modulation import StepModulation

Velocities = tuple[Tensor, Tensor]  # float32: video [Nv, C * 4], audio [Na, C]
STREAMS = ("video", "audio")
_TARGETS = (Role.VIDEO_TARGET, Role.AUDIO_TARGET)  # in the order of STREAMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a policy knows of its request before the first forward. Sigmas: of every forward, before it."""

    layout: PackedLayout
    num_blocks: int
    video_sigmas: tuple[float, ...]
    audio_sigmas: tuple[float, ...]

    @property
    def num_forwards(self) -> int:
        return len(self.video_sigmas)


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks ``start .. stop`` over ``x_SD``, which a policy waits for; it is sent the rows [S, D] that leave them."""

    x_SD: Tensor
    start: int
    stop: int


Asked = Generator[Part, Tensor, Tensor]


def same_everywhere(values: Tensor) -> Tensor:
    """:attr:`Forward.total` of one rank."""
    return values


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward as a policy sees it. ``y = yield from run(x)`` has all blocks run, ``yield from run(x, 0, 4)`` the
    first four; one that is not asked for costs nothing. ``x`` is left as it was.

    ``modulation`` is that of this rank's rows, of which ``first_row`` is the first. ``total`` sums values over all
    ranks, each of which may count a row more than once, all equally often.
    """

    modulation: StepModulation
    num_blocks: int
    first_row: int = 0
    total: Callable[[Tensor], Tensor] = same_everywhere

    def __call__(self, x_SD: Tensor, start: int = 0, stop: int | None = None) -> Asked:
        """Returns [S, D]."""
        return (yield Part(x_SD, start, self.num_blocks if stop is None else stop))


class StepCache:
    """The policy of one request, with its state. This one skips nothing; others say where they differ.

    A forward is run on a shallow copy, which takes the place of the policy once the step is done: a forward that fails
    and is tried again finds everything as it was. So what a policy holds is replaced and never changed in place.
    """

    course: Course

    def begin(self, course: Course) -> None:
        """Called once, before the first forward. Raises ``ConfigError`` where the policy does not fit the request."""
        self.course = course

    def may_skip(self, step: int) -> bool:
        """Not the first forward, which sees nothing but noise, nor the last one, which ends the clip."""
        return 0 < step < self.course.num_forwards - 1

    def velocities(self, step: int) -> Velocities | None:
        """What forward ``step`` would give, where that is known without it. ``None``: it is to be run."""
        return None

    def forward(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        """The rows [S, D] that leave the blocks in forward ``step`` (from 0); ``x_SD`` [S, D] is what was embedded."""
        return (yield from run(x_SD))

    def observe(self, step: int, video: Tensor, audio: Tensor) -> None:
        """The velocities that forward ``step`` gave, skipped blocks or not. Not called after :meth:`velocities`."""

    # What a resume needs.

    def needs(self) -> tuple[int, ...]:
        """Earlier forwards that :meth:`relearn` must see again: the rows that entered them are kept and saved."""
        return ()

    def saved(self) -> dict[str, Tensor]:
        """Whatever else its next decisions depend on; small."""
        return {}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Takes what :meth:`saved` gave; :meth:`relearn` follows, for each of :meth:`needs` in order. Raises
        ``KeyError`` or ``ValueError`` for what it did not give."""

    def relearn(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        """Has forward ``step`` run again as it was, and keeps of it what it kept then: after a resume."""
        return (yield from self.forward(step, x_SD, run))


def target_spans(layout: PackedLayout, first_row: int, num_rows: int) -> list[list[tuple[int, int]]]:
    """Of video and of audio, the rows that are being denoised, counted from ``first_row``; only those of ``num_rows``
    from there on."""
    found: list[list[tuple[int, int]]] = [[], []]
    for segment in layout.segments:
        if segment.role in _TARGETS:
            start, stop = max(segment.start - first_row, 0), min(segment.stop - first_row, num_rows)
            if start < stop:
                found[_TARGETS.index(segment.role)].append((start, stop))
    return found


def number(value: float) -> Tensor:
    """As it is saved."""
    return torch.tensor(value, dtype=torch.float64)
