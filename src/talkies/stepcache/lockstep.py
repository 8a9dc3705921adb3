"""Several forwards that stop where their policies want to look, run together as far as they go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from talkies.stepcache.base import Asked, Part

# (which of the forwards, ascending, their rows [S, D] each, start, stop) -> the rows that leave those blocks
RunTogether = Callable[[Sequence[int], Sequence[Tensor], int, int], Sequence[Tensor]]


@dataclass(slots=True)
class Done:
    """Of one forward: the rows [S, D] that leave its blocks, and how many blocks were run."""

    rows: list[Tensor]
    blocks: list[int]


def drive(forwards: Sequence[Asked], run: RunTogether) -> Done:
    """Runs all of them to their end. Those that want the same blocks share them; who wants later ones waits until the
    others have come there, or have ended."""
    ended: dict[int, Tensor] = {}
    waiting: dict[int, Part] = {}
    blocks = [0] * len(forwards)

    def resume(index: int, sent: Tensor | None) -> None:
        waiting.pop(index, None)
        try:
            # A generator that has not begun takes None, which its type does not say.
            waiting[index] = forwards[index].send(sent)  # type: ignore[arg-type]
        except StopIteration as end:
            ended[index] = end.value

    for index in range(len(forwards)):
        resume(index, None)
    while waiting:
        start = min(part.start for part in waiting.values())
        now = sorted(index for index, part in waiting.items() if part.start == start)
        # As far as the nearest place where somebody stops, or joins in.
        stop = min(edge for part in waiting.values() for edge in (part.start, part.stop) if edge > start)
        left = run(now, [waiting[index].x_SD for index in now], start, stop)
        for index, rows in zip(now, left, strict=True):
            blocks[index] += stop - start
            part = waiting[index]
            if part.stop == stop:
                resume(index, rows)
            else:
                waiting[index] = replace(part, x_SD=rows, start=stop)
    return Done([ended[index] for index in range(len(forwards))], blocks)
