"""In which order the jobs of a service will run, those that no worker has been told of included.

A worker says what its scheduler knows. What it does not know yet (it is in the middle of a unit, it loads, there is
none) is put in by the scheduler's own rules, exactly as the worker will do it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from talkies.capacity.cost import Size, size_of
from talkies.capacity.demand import demand_of
from talkies.engine.port.messages import Books, WorkerOptions
from talkies.engine.port.service import Job, OnOrder, QueueOrder
from talkies.engine.worker.scheduler import StepScheduler
from talkies.errors import TalkiesError
from talkies.h3.geometry import Limits

log = logging.getLogger(__name__)
_NOTHING = Size(rows=1, num_forwards=0, pixels=0)  # of a job that the worker will refuse


class OrderTeller:
    """Thread-safe. ``changed`` is a note of its owner's that there is something to tell."""

    def __init__(self, options: WorkerOptions) -> None:
        self.on_order: OnOrder | None = None
        self.changed = False
        self._lock = threading.RLock()
        self._options = options
        self._books = Books()
        self._sizes: dict[str, Size] = {}

    def heard(self, books: Books) -> None:
        """From the worker; empty ones when it is gone, for the next one knows nothing."""
        with self._lock:
            self._books = books
            self.changed = True

    def tell(self, jobs: Callable[[], Sequence[Job]], limits: Limits | None, *, ready_in_s: float | None) -> None:
        """``jobs`` are those that have not ended, by arrival; see :meth:`order`."""
        if self.on_order is None:
            return
        with self._lock:  # made and told in one: an older order must not follow a newer one
            self.changed = False
            try:
                self.on_order(self.order(jobs(), limits, ready_in_s=ready_in_s))
            except Exception:
                log.exception("listener of the order")

    def order(self, jobs: Sequence[Job], limits: Limits | None, *, ready_in_s: float | None) -> QueueOrder:
        """``jobs`` have not ended, by arrival. Without ``limits``, which nobody knows before the first worker has said
        them, all count as equally long."""
        scheduler = StepScheduler.of(self._books, self._options.policy, max_num_seqs=self._options.max_num_seqs)
        open_ids = {job.id for job in jobs}
        for entry in self._books.entries:
            if entry.id not in open_ids:
                scheduler.remove(entry.id)
        self._sizes = {job_id: size for job_id, size in self._sizes.items() if job_id in open_ids}
        for job in jobs:
            if job.id not in scheduler:
                size = self._size(job, limits)
                scheduler.admit(job.id, rows=size.rows, remaining=size.row_forwards, priority=job.priority)
        group = scheduler.next()
        together = group if len(group) > 1 else ()
        rest = [job_id for job_id in scheduler.line() if job_id not in together]
        return QueueOrder(job_ids=(*together, *rest), together=max(1, len(together)), ready_in_s=ready_in_s)

    def _size(self, job: Job, limits: Limits | None) -> Size:
        if limits is None:
            return _NOTHING
        if job.id not in self._sizes:
            try:
                self._sizes[job.id] = size_of(job.demand or demand_of(job.request, limits))
            except (TalkiesError, OSError):
                self._sizes[job.id] = _NOTHING
        return self._sizes[job.id]
