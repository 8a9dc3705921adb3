"""Whose step is next. Pure Python: no model, no clock of its own, no threads.

The unit is (request, step). After every unit the owner reports the work left and asks again, so cancelling
and preempting both happen at the next boundary. Work is counted in row-forwards: rows of the packed sequence times
forwards, whatever hardware they run on.

    fifo                begun first, finished first
    shortest-remaining  least work left first, the default: the lowest mean latency. A job that has been passed over
                        for ``PATIENCE`` times its own remaining work goes ahead of every newcomer, and a newcomer
                        must be shorter by ``BEGIN_MARGIN`` to interrupt, since its size is still an estimate. Sizes
                        within ``ALIKE`` of each other are equal while they wait, and equals run by arrival.
    fair                least served first: equal shares of the device

Priorities are strict: larger ones run first. Within one priority no policy starves a job.

Memory: what begun requests hold, and the largest unit of any of them, must stay within ``room``. A request that fits
alone but not beside the others waits for them, and nobody behind it overtakes it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from talkies.engine.port.messages import Books
from talkies.engine.port.policy import check_policy
from talkies.errors import ConfigError

PATIENCE = 4.0
BEGIN_MARGIN = 1.25
ALIKE = 0.05  # a longer prompt is a few rows more: no reason to wait longer
MAX_ACTIVE = 8  # begun requests: each holds latents and a share of the modulation tables


@dataclass(kw_only=True)
class Entry:
    """One request. ``batch_key`` is set while its next unit may share a forward with others of the same key."""

    id: str
    order: int
    priority: int
    rows: int  # estimated until it is packed
    remaining: float  # row-forwards left
    joined_at: float  # the scheduler's clock of work when it was admitted
    size: float = 0.0  # row-forwards as compared until it begins: those of an earlier one that is about as large
    served: float = 0.0  # work spent on it; with ``fair``, counted from the least served at admission
    spent: float = 0.0  # work spent on it
    begun: bool = False
    packed: bool = False  # its forwards can begin
    held: int = 0  # bytes from its first unit to its last
    transient: int = 0  # bytes more during its largest unit
    batch_key: Hashable | None = field(default=None)


class StepScheduler:
    """Chooses units. The caller runs what :meth:`next` names, then calls :meth:`report` for each of them."""

    def __init__(
        self,
        policy: str = "shortest-remaining",
        *,
        max_num_seqs: int = 1,
        max_step_rows: int = 1,
        max_active: int = MAX_ACTIVE,
    ) -> None:
        check_policy(policy)
        if max_num_seqs < 1 or max_active < 1:
            raise ConfigError(f"max_num_seqs={max_num_seqs} is under 1", hint="1 is off", param="max_num_seqs")
        self.policy = policy
        self.max_num_seqs, self.max_step_rows = max_num_seqs, max_step_rows
        self.max_active = max(max_active, max_num_seqs)
        self.room = float("inf")  # bytes for all begun requests together
        self._rank = RANKS[policy]
        self._entries: dict[str, Entry] = {}
        self._next_order = 0
        self._work = 0.0  # all work ever done

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    @classmethod
    def of(cls, books: Books, policy: str, *, max_num_seqs: int = 1) -> StepScheduler:
        """One that would choose as the owner of these books does."""
        scheduler = cls(policy, max_num_seqs=max_num_seqs, max_step_rows=books.max_step_rows)
        scheduler.room, scheduler._work = books.room, books.work
        scheduler._entries = {e.id: replace(e) for e in books.entries}
        scheduler._next_order = 1 + max((e.order for e in books.entries), default=-1)
        return scheduler

    def books(self) -> Books:
        """Everything that its choice depends on."""
        entries = tuple(replace(e) for e in self._entries.values())
        return Books(entries=entries, work=self._work, room=self.room, max_step_rows=self.max_step_rows)

    @property
    def num_active(self) -> int:
        return sum(e.begun for e in self._entries.values())

    def admit(
        self,
        request_id: str,
        *,
        rows: int,
        remaining: float,
        priority: int = 0,
        held: int = 0,
        transient: int = 0,
    ) -> None:
        """A new request with its estimated size."""
        assert request_id not in self._entries, request_id
        self._entries[request_id] = Entry(
            id=request_id,
            order=self._next_order,
            priority=priority,
            rows=rows,
            remaining=remaining,
            joined_at=self._work,
            size=self._comparable(remaining),
            # A newcomer that counted from zero would have the device alone until it caught up with everybody.
            served=self._least_served(priority),
            held=held,
            transient=transient,
        )
        self._next_order += 1

    def next(self) -> tuple[str, ...]:
        """The requests of the next unit: one, or several that share a forward; none when nothing can run."""
        ranked = sorted(self._runnable(), key=self._sort_key)
        if not ranked:
            return ()
        head = ranked[0]
        if head.batch_key is None or self.max_num_seqs == 1:
            return (head.id,)
        group, rows = [head], head.rows
        free = self.room - sum(e.held for e in self._entries.values() if e.begun) - head.transient
        for entry in ranked[1:]:
            if len(group) == self.max_num_seqs:
                break
            if rows + entry.rows > self.max_step_rows or entry.transient > free:
                continue
            if not entry.packed:
                # It cannot join yet: its media and text are quickly read, and then they go on together.
                return (entry.id,)
            if entry.batch_key == head.batch_key:
                group.append(entry)
                rows += entry.rows
                free -= entry.transient
        return tuple(e.id for e in group)

    def report(
        self,
        request_id: str,
        *,
        work: float,
        remaining: float,
        rows: int | None = None,
        packed: bool = True,
        batch_key: Hashable | None = None,
    ) -> None:
        """What a unit did to one of its requests: ``work`` spent, ``remaining`` left, and whether it may batch."""
        entry = self._entries.get(request_id)
        if entry is None:
            return
        self._work += work
        entry.begun, entry.packed = True, packed
        entry.served += work
        entry.spent += work
        entry.remaining = remaining
        entry.rows = entry.rows if rows is None else rows
        entry.batch_key = batch_key

    def remove(self, request_id: str) -> bool:
        """Finished, failed or cancelled. False when it is not here."""
        return self._entries.pop(request_id, None) is not None

    def line(self) -> tuple[str, ...]:
        """All requests, begun or not, in the order in which they will run as things stand."""
        able = sorted(self._runnable(), key=self._sort_key)
        listed = {e.id for e in able}
        rest = sorted((e for e in self._entries.values() if e.id not in listed), key=self._sort_key)
        return tuple(e.id for e in (*able, *rest))

    def _comparable(self, remaining: float) -> float:
        """``remaining``, or the size of the nearest one that is alike. A number once given stays, so the order of any
        three is an order; rounding to classes would part neighbours on both sides of an edge."""
        alike = [e.size for e in self._entries.values() if abs(e.size - remaining) <= ALIKE * e.size]
        return min(alike, key=lambda size: abs(size - remaining), default=remaining)

    def _least_served(self, priority: int) -> float:
        """Of those that take turns with each other."""
        return min((e.served for e in self._entries.values() if e.priority == priority), default=0.0)

    def _runnable(self) -> list[Entry]:
        active = [e for e in self._entries.values() if e.begun]
        full = len(active) >= self.max_active
        above = max((e.priority for e in active), default=0)
        waiting = [e for e in self._entries.values() if not e.begun and (not full or e.priority > above)]
        return active + self._that_fit(waiting)

    def _that_fit(self, waiting: list[Entry]) -> list[Entry]:
        """Those that may begin beside what has begun. One that does not fit yet keeps all behind it waiting, or it
        would never find the memory free."""
        begun = [e for e in self._entries.values() if e.begun]
        if not begun:
            return waiting  # alone each of them fits, or was refused
        held, transient = sum(e.held for e in begun), max(e.transient for e in begun)
        ranked = sorted(waiting, key=self._sort_key)
        for i, entry in enumerate(ranked):
            if held + entry.held + max(transient, entry.transient) > self.room:
                return ranked[:i]
        return ranked

    def _sort_key(self, entry: Entry) -> tuple[float, float, int]:
        return (-entry.priority, self._rank(entry, self._work), entry.order)


def _fifo(entry: Entry, work: float) -> float:
    return entry.order


def _shortest_remaining(entry: Entry, work: float) -> float:
    # Work done for others while it waited counts as credit: the rank falls without bound, a newcomer's is positive.
    passed_over = work - entry.joined_at - entry.spent
    left = entry.remaining if entry.begun else BEGIN_MARGIN * entry.size
    return left - passed_over / PATIENCE


def _fair(entry: Entry, work: float) -> float:
    return entry.served


RANKS: dict[str, Callable[[Entry, float], float]] = {
    "fifo": _fifo,
    "shortest-remaining": _shortest_remaining,
    "fair": _fair,
}
