"""The jobs of a service from ``submit`` to their last event, whatever happens to the workers that run them.

Thread-safe. Orders are collected here and taken by whoever talks to the worker; events come back through
:meth:`Ledger.deliver`, which lets the first last one of a job through and nothing after it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from talkies.engine.port.failure import error_dict
from talkies.engine.port.messages import Cancel, Command, Stop, Submit
from talkies.engine.port.service import RESTARTING, TERMINAL, Job, JobEvent, OnEvent
from talkies.errors import TalkiesError

log = logging.getLogger(__name__)
MAX_DEATHS = 2  # of workers over one job


@dataclass
class Tracked:
    """A job that has not ended."""

    job: Job
    begun: bool = False
    cancelled: bool = False
    deaths: int = 0


class Ledger:
    """``on_event`` is called by the thread that delivers; what it raises is its own affair."""

    def __init__(self) -> None:
        self.on_event: OnEvent | None = None
        self._lock = threading.Lock()
        self._tracked: dict[str, Tracked] = {}
        self._orders: deque[Command] = deque()
        self._own_events: deque[JobEvent] = deque()

    def __len__(self) -> int:
        return len(self._tracked)

    def add(self, job: Job) -> None:
        with self._lock:
            assert job.id not in self._tracked, f"job {job.id} was submitted twice"
            assert len(job.outputs) == job.request.num_outputs, job
            self._tracked[job.id] = Tracked(job)
            self._orders.append(Submit(job))

    def open_jobs(self) -> list[Job]:
        """That will run, by arrival."""
        with self._lock:
            return [t.job for t in self._tracked.values() if not t.cancelled]

    def cancel(self, job_id: str, *, worker_listens: bool) -> None:
        with self._lock:
            tracked = self._tracked.get(job_id)
            if tracked is None or tracked.cancelled:
                return
            tracked.cancelled = True
            self._orders.append(Cancel(job_id))
            if not worker_listens and not tracked.begun:
                # A worker that loads answers nobody, and has not touched this job.
                self._own_events.append(JobEvent(job_id=job_id, kind="cancelled"))

    def stop(self) -> None:
        with self._lock:
            self._orders.append(Stop())

    def next_order(self) -> Command | None:
        with self._lock:
            return self._orders.popleft() if self._orders else None

    def drop_orders(self) -> None:
        with self._lock:
            self._orders.clear()

    def renew_orders(self) -> None:
        """A new worker knows nothing: it gets all that is still wanted."""
        with self._lock:
            stops = [order for order in self._orders if isinstance(order, Stop)]
            jobs = list(self._tracked.values())
            self._orders = deque(Submit(t.job) for t in jobs if not t.cancelled)
            # Cancelled when the last worker could not hear it any more: no other one will say so.
            self._own_events.extend(JobEvent(job_id=t.job.id, kind="cancelled") for t in jobs if t.cancelled)
            self._orders.extend(stops)

    def deliver(self, event: JobEvent) -> None:
        """Passes an event on; the first last one of a job is also the only one."""
        with self._lock:
            tracked = self._tracked.get(event.job_id)
            if tracked is None:
                return
            tracked.begun = tracked.begun or event.kind in ("started", "resumed", "progress")
            if event.kind in TERMINAL:
                del self._tracked[event.job_id]
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:
            log.exception("listener of job %s", event.job_id)

    def deliver_own(self) -> None:
        """What :meth:`cancel` decided without a worker."""
        while self._own_events:
            self.deliver(self._own_events.popleft())

    def settle_death(self, at: tuple[str, ...], error: TalkiesError) -> None:
        """A worker is gone while ``at`` were in work: those it has taken twice fail, the others go on."""
        for tracked in list(self._tracked.values()):
            job_id = tracked.job.id
            tracked.deaths += job_id in at
            tracked.begun = False  # the next worker has not touched it, so a cancel need not wait for that one
            if tracked.cancelled:
                self.deliver(JobEvent(job_id=job_id, kind="cancelled"))
            elif tracked.deaths >= MAX_DEATHS:
                what = f"{error.message}; {tracked.deaths} times while it ran this job"
                failed = type(error)(what, hint=error.hint)
                self.deliver(JobEvent(job_id=job_id, kind="failed", error=error_dict(failed)))
            else:
                self.deliver(JobEvent(job_id=job_id, kind="queued", stage=RESTARTING))

    def give_up(self, error: TalkiesError) -> None:
        """Nobody will run them."""
        for job_id in list(self._tracked):
            self.deliver(JobEvent(job_id=job_id, kind="failed", error=error_dict(error)))
