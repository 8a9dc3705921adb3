"""What is happening now, in memory: the part of a job that need not survive a restart, and who is watching it.

Events come from the engine's thread, watchers live on the event loop. A slow watcher costs one slot per kind of event:
only the newest of each is kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

WatchKind = Literal["progress", "preview", "done", "deleted", "closing"]
LAST: frozenset[str] = frozenset({"done", "deleted"})


@dataclass(slots=True)
class LiveState:
    """``queue_position`` 1 is next. ``eta_s`` is the engine's for a running job."""

    queue_position: int | None = None
    stage: str | None = None
    step: int | None = None
    num_steps: int | None = None
    fraction: float = 0.0
    eta_s: float | None = None
    paused: bool = False
    preview: bytes | None = None
    predicted_s: float | None = None

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

    ``root_path`` is where a proxy serves the API: addresses in jobs begin with it.
    """

    def __init__(self, *, root_path: str = "") -> None:
        self.root_path = root_path
        self._lock = threading.Lock()
        self._states: dict[str, LiveState] = {}
        self._watchers: dict[str, set[JobSubscriber]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, job_id: str, *, predicted_s: float | None) -> None:
        """A job joins the end of the queue."""
        with self._lock:
            place = 1 + sum(s.queue_position is not None for s in self._states.values())
            self._states[job_id] = LiveState(queue_position=place, predicted_s=predicted_s)

    def get(self, job_id: str) -> LiveState | None:
        with self._lock:
            return self._states.get(job_id)

    def update(self, job_id: str, **changes: Any) -> None:
        """Sets the given fields and tells the watchers. Leaving the queue moves everybody behind one place up."""
        with self._lock:
            state = self._states.get(job_id)
            if state is None:
                return
            moved = []
            if changes.get("queue_position", state.queue_position) is None and state.queue_position is not None:
                moved = self._close_gap(state.queue_position)
            for name, value in changes.items():
                setattr(state, name, value)
            told = [(job_id, state.public()), *moved]
        for watched, public in told:
            self._tell(watched, "progress", public)

    def preview(self, job_id: str, jpeg: bytes) -> None:
        with self._lock:
            state = self._states.get(job_id)
            if state is None:
                return
            state.preview = jpeg
        self._tell(job_id, "preview", jpeg)

    def end(self, job_id: str, kind: Literal["done", "deleted"]) -> None:
        """The job is over: its state goes, its watchers hear the last event."""
        with self._lock:
            state = self._states.pop(job_id, None)
            moved = self._close_gap(state.queue_position) if state and state.queue_position is not None else []
        for watched, public in moved:
            self._tell(watched, "progress", public)
        self._tell(job_id, kind, None)

    def eta_s(self, job_id: str) -> float | None:
        """Of a running job the engine's; of a waiting one the predicted work ahead of it and its own."""
        with self._lock:
            state = self._states.get(job_id)
            if state is None:
                return None
            if state.queue_position is None:
                return state.eta_s
            ahead = [s for s in self._states.values() if s.queue_position and s.queue_position <= state.queue_position]
            if any(s.predicted_s is None for s in ahead):
                return None
            running = sum(s.eta_s or 0.0 for s in self._states.values() if s.queue_position is None)
            return running + sum(s.predicted_s or 0.0 for s in ahead)

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

    def _close_gap(self, place: int) -> list[tuple[str, dict[str, Any]]]:
        moved = []
        for job_id, state in self._states.items():
            if state.queue_position is not None and state.queue_position > place:
                state.queue_position -= 1
                moved.append((job_id, state.public()))
        return moved

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
