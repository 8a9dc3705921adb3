"""One rank decides, the others follow.

What a request is, when it steps and when it ends is known to rank 0 alone. It says in a short order what all do next;
then all do it, and meet in their collectives. Orders go through a pipe, so an idle rank waits for as long as it takes
and sees the end of its leader; tensors go through the group, and only those that the others cannot make themselves.

What orders there are is the pipeline's (``engine/pipeline/orders.py``).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from talkies.errors import WorkerDied
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.peers import Peers

T = TypeVar("T")
Kind = tuple[torch.Size, torch.dtype]


class Leader:
    """Rank 0's side. ``tell`` sends an order to every other rank; ``who_died`` says which of them was ended from
    outside, if one was: a broken collective does not."""

    def __init__(
        self, groups: RankGroups, tell: Callable[[Any], None], who_died: Callable[[], str | None] = lambda: None
    ) -> None:
        self.groups, self._peers, self._tell, self._who_died = groups, groups.peers, tell, who_died
        self.failure: str | None = None  # what ended the ranks: they cannot be led any more
        self.busy = False  # inside something that all ranks do
        self._numbers: dict[int, int] = {}  # id of a thing that the others hold, too -> its number
        self._given = 0
        self._gone: deque[int] = deque()

    def number(self, thing: object) -> tuple[int, bool]:
        """By which the others know ``thing``, and whether they do not know it yet. It is theirs until it is nobody's
        here: then its number is among :meth:`forgotten`."""
        known = self._numbers.get(id(thing))
        if known is not None:
            return known, False
        self._given += 1
        self._numbers[id(thing)] = self._given
        weakref.finalize(thing, self._ended, id(thing), self._given).atexit = False
        return self._given, True

    def _ended(self, key: int, number: int) -> None:
        """Called by whichever thread dropped it, wherever that was: nothing is sent here."""
        self._numbers.pop(key, None)
        self._gone.append(number)

    def forgotten(self) -> tuple[int, ...]:
        """Numbers of what is gone since the last call."""
        return tuple(self._gone.popleft() for _ in range(len(self._gone)))

    def together(self, order: object, given: Sequence[Tensor], run: Callable[[], T]) -> T:
        """Tells all ranks ``order``, gives them the values of ``given`` (they call :func:`taken`), and does ``run``.

        Raises ``WorkerDied`` where the ranks have ended or end meanwhile, and what ``run`` raises: then they end, too,
        since the others stand in the middle of it.
        """
        if self.failure is not None:
            raise WorkerDied(f"the ranks of this engine ended: {self.failure}", hint="open the engine again")
        self.busy = True
        try:
            self._peers.check()
            self._tell(order)
            for tensor in given:
                _share(tensor.contiguous(), self._peers)
            return run()
        except BaseException as error:
            died = self._who_died() if isinstance(error, WorkerDied) else None
            self.failure = died or str(error) or type(error).__name__
            self._peers.fail(error)
            if died is not None:
                raise WorkerDied(died, hint="the job failed; the engine's ranks are restarted together") from error
            raise
        finally:
            self.busy = False


def kind_of(tensor: Tensor) -> Kind:
    """What must be known of a tensor to take it."""
    return tensor.shape, tensor.dtype


def taken(kind: Kind, device: torch.device, peers: Peers) -> Tensor:
    """What rank 0 gives, on another rank. In the order in which it gives."""
    tensor = torch.empty(kind[0], dtype=kind[1], device=device)
    _share(tensor, peers)
    return tensor


def _share(tensor: Tensor, peers: Peers) -> None:
    """Rank 0's values become everybody's."""
    if tensor.numel():
        peers.together("tensors were given", lambda: dist.broadcast(tensor, group_src=0, group=peers.group))
