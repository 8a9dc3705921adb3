"""What is happening now, in memory: the part of a job that need not survive a restart, and who is watching it.

Events come from the engine's thread, watchers live on the event loop. A slow watcher costs one slot per kind of event:
only the newest of each is kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Literal

from talkies.engine.port.service import QueueOrder
from talkies.server.jobs.standing import Ahead, etas_s, places

WatchKind = Literal["progress", "preview", "done", "deleted", "unrecorded", "closing"]
LAST: frozenset[str] = frozenset({"done", "deleted"})
WORTH_TELLING_S, WORTH_TELLING = 0.5, 0.05  # an ETA that moved by so much, and by this share of itself


@dataclass(slots=True)
class LiveState:
    """``left_s`` is what it needs by itself. ``queue_position`` (1 is next, None once begun) and ``eta_s`` follow from
    all jobs and their order, and are kept by :class:`Live`."""

    begun: bool = False
    left_s: float | None = None
    priority: int = 0
    queue_position: int | None = None
    stage: str | None = None
    step: int | None = None
    num_steps: int | None = None
    fraction: float = 0.0
    eta_s: float | None = None
    paused: bool = False
    preview: bytes | None = None
    accepted_at: float | None = None  # monotonic; None: by an earlier process
    begun_at: float | None = None  # monotonic
    told_eta_s: float | None = None

    def public(self) -> dict[str, Any]:
        return {
            "queue_position": self.queue_position,
            "stage": self.stage,
            "step": self.step,
            "num_steps": self.num_steps,
            "progress": percent(self.fraction),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 2),
            "paused": self.paused,
        }


def percent(fraction: float) -> int:
    """100 is for a finished job alone."""
    return max(0, min(99, int(fraction * 100)))


def _differs(eta_s: float | None, told_s: float | None) -> bool:
    if eta_s is None or told_s is None:
        return eta_s is not told_s
    return abs(eta_s - told_s) > max(WORTH_TELLING_S, WORTH_TELLING * told_s)


class JobSubscriber:
    """One event stream. Use from the loop's thread."""

    def __init__(self) -> None:
        self._pending: dict[WatchKind, Any] = {}
        self._ready = asyncio.Event()

    def push(self, kind: WatchKind, data: Any) -> None:
        self._pending[kind] = data
        self._ready.set()

    async def next(self, timeout_s: float) -> dict[WatchKind, Any]:
        """What came since the last call, at most one of each kind; empty after ``timeout_s``."""
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return {}
        self._ready.clear()
        pending, self._pending = self._pending, {}
        return pending


class Live:
    """Thread-safe, except :meth:`watch` and :meth:`unwatch`, which belong to the loop.

    ``policy`` is that of the engine; ``root_path`` is where a proxy serves the API: addresses in jobs begin with it.
    """

    def __init__(self, policy: str = "fifo", *, root_path: str = "") -> None:
        self.root_path = root_path
        self._lock = threading.Lock()
        self._policy = policy
        self._states: dict[str, LiveState] = {}  # in the order in which they will run
        self._together = 1
        self._ready_at: float | None = 0.0  # monotonic; None: nobody knows when a worker can go on
        self._watchers: dict[str, set[JobSubscriber]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(
        self, job_id: str, *, predicted_s: float | None, priority: int = 0, accepted_at: float | None = None
    ) -> None:
        """A job joins the end of the line, until the engine says where it belongs."""
        with self._lock:
            self._states[job_id] = LiveState(left_s=predicted_s, priority=priority, accepted_at=accepted_at)
            moved = self._stand()
        for watched, public in moved:
            self._tell(watched, "progress", public)

    def reorder(self, order: QueueOrder) -> None:
        """What the engine will do as things stand, all of it at once: no two jobs ever have one place."""
        with self._lock:
            ahead = {job_id: self._states[job_id] for job_id in order.job_ids if job_id in self._states}
            self._states = ahead | {job_id: s for job_id, s in self._states.items() if job_id not in ahead}
            self._together = order.together
            self._ready_at = None if order.ready_in_s is None else time.monotonic() + order.ready_in_s
            moved = self._stand()
        for job_id, public in moved:
            self._tell(job_id, "progress", public)

    def get(self, job_id: str) -> LiveState | None:
        """As it is now; a copy, like all that leave."""
        with self._lock:
            state = self._states.get(job_id)
            return None if state is None else self._now(state)

    def all(self) -> dict[str, LiveState]:
        """Of one moment: in a list made of them no two jobs have one place."""
        with self._lock:
            return {job_id: self._now(state) for job_id, state in self._states.items()}

    def update(self, job_id: str, **changes: Any) -> None:
        """Sets the given fields and tells the watchers, those of others whose place or time changes by it included."""
        with self._lock:
            state = self._states.get(job_id)
            if state is None:
                return
            for name, value in changes.items():
                setattr(state, name, value)
            moved = self._stand()
            told = [(job_id, state.public()), *(each for each in moved if each[0] != job_id)]
        for watched, public in told:
            self._tell(watched, "progress", public)

    def preview(self, job_id: str, jpeg: bytes) -> None:
        with self._lock:
            state = self._states.get(job_id)
            if state is None:
                return
            state.preview = jpeg
        self._tell(job_id, "preview", jpeg)

    def unrecorded(self, job_id: str) -> None:
        """The job is over, and the disk takes no record of it for now."""
        self._tell(job_id, "unrecorded", None)

    def end(self, job_id: str, kind: Literal["done", "deleted"]) -> None:
        """The job is over: its state goes, its watchers hear the last event."""
        with self._lock:
            moved = [] if self._states.pop(job_id, None) is None else self._stand()
        for watched, public in moved:
            self._tell(watched, "progress", public)
        self._tell(job_id, kind, None)

    def eta_s(self, job_id: str) -> float | None:
        """What it and all ahead of it have left, and the start of a worker where there is none."""
        state = self.get(job_id)
        return None if state is None else state.eta_s

    def close(self) -> None:
        """The server stops: open streams end instead of holding it up. Call on the loop."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.push("closing", None)

    def watch(self, job_id: str) -> JobSubscriber:
        watcher = JobSubscriber()
        self._watchers[job_id].add(watcher)
        return watcher

    def unwatch(self, job_id: str, watcher: JobSubscriber) -> None:
        watchers = self._watchers.get(job_id)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[job_id]

    def _now(self, state: LiveState) -> LiveState:
        if state.eta_s is None or self._ready_at is None:
            return replace(state, eta_s=None)
        return replace(state, eta_s=state.eta_s + max(0.0, self._ready_at - time.monotonic()))

    def _stand(self) -> list[tuple[str, dict[str, Any]]]:
        """Places and times of all anew. Returns those whose watchers should hear of it."""
        line = [Ahead(s.left_s, s.begun, s.priority) for s in self._states.values()]
        etas = etas_s(line, policy=self._policy, together=self._together)
        moved = []
        for (job_id, state), place, eta_s in zip(self._states.items(), places(line), etas, strict=True):
            if place != state.queue_position or _differs(eta_s, state.told_eta_s):
                moved.append((job_id, state))
                state.told_eta_s = eta_s
            state.queue_position, state.eta_s = place, eta_s
        return [(job_id, state.public()) for job_id, state in moved]

    def _tell(self, job_id: str, kind: WatchKind, data: Any) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return

        def push() -> None:
            for watcher in list(self._watchers.get(job_id, ())):
                watcher.push(kind, data)

        try:
            loop.call_soon_threadsafe(push)
        except RuntimeError:
            return  # the loop closed in between: nobody is watching any more
