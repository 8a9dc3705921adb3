"""EngineService over a worker process: starts it, feeds it, and outlives it.

    submit, cancel ... -> outbox -> [pump thread] -> pipe -> worker        one pump thread per executor: it alone
    on_event           <-           [pump thread] <- pipe <- worker        talks to the worker and calls on_event

A job is kept here until its last event. When the worker dies, the jobs it was working on are tried once more from
their last saved step, and fail with ``WorkerDied`` if it dies over them again; all others are simply handed to the
next worker. This file imports no torch, and neither does what it imports: the process that serves starts in a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from talkies.engine.cost import CostModel, predict
from talkies.engine.failure import error_dict
from talkies.engine.link import Bell, Link
from talkies.engine.messages import (
    At,
    Cancel,
    Command,
    Fatal,
    Hello,
    Learned,
    Message,
    Pause,
    Ready,
    Stats,
    Stop,
    Submit,
    WorkerOptions,
)
from talkies.engine.service import TERMINAL, Job, JobEvent, OnEvent, ServiceInfo
from talkies.errors import NotReady, TalkiesError, WorkerDied
from talkies.request import VideoRequest

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig

log = logging.getLogger(__name__)
MAX_DEATHS = 2  # of workers over one job
MAX_FAILED_STARTS = 5  # in a row, before the service gives up
BACKOFF_S, MAX_BACKOFF_S = 0.2, 30.0
STABLE_AFTER_S = 60.0  # a worker that lived so long did not die of its start
INFO_TIMEOUT_S = 300.0  # a model hub may have to be asked


@dataclass
class Tracked:
    """A job from submit to its last event."""

    job: Job
    begun: bool = False
    cancelled: bool = False
    paused: bool = False
    deaths: int = 0


class Executor:
    """See :class:`talkies.engine.service.EngineService`. ``data_dir`` keeps what is worth keeping between runs."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        policy: str = "shortest-remaining",
        data_dir: Path | None = None,
        max_num_seqs: int = 1,
        media_root: Path | None = None,
        max_step_rows: int | None = None,
        save_every_s: float = 3.0,
        preview_every_s: float = 1.0,
    ) -> None:
        self._options = WorkerOptions(
            config=config,
            policy=policy,
            max_num_seqs=max_num_seqs,
            max_step_rows=max_step_rows,
            media_root=media_root,
            cache_dir=None if data_dir is None else data_dir / "cache",
            save_every_s=save_every_s,
            preview_every_s=preview_every_s,
        )
        self._lock = threading.RLock()
        self._tracked: dict[str, Tracked] = {}
        self._outbox: deque[Command] = deque()
        self._own_events: deque[JobEvent] = deque()
        self._on_event: OnEvent | None = None
        self._state: Literal["loading", "ready", "dead"] = "loading"
        self._fatal: TalkiesError | None = None
        self._info: ServiceInfo | None = None
        self._info_known = threading.Event()
        self._cost: CostModel | None = None
        self._at: tuple[str, ...] = ()
        self._stats: dict[str, float] = {}
        self._past: dict[str, float] = {}  # totals of workers that are gone
        self._restarts = 0
        self._failed_starts = 0
        self._failures_in_row = 0
        self._start_at = 0.0
        self._link: Link | None = None
        self._closing: float | None = None  # when patience with the worker ends
        self._bell = Bell()
        self._pump = threading.Thread(target=self._run, name="executor", daemon=True)

    @cached_property
    def info(self) -> ServiceInfo:
        """The worker says it before it reads a weight; starts one if there is none.

        Raises ``ConfigError`` or ``CheckpointError`` for a model that cannot be served, ``NotReady`` otherwise.
        """
        self._begin()
        self._info_known.wait(INFO_TIMEOUT_S)
        if self._info is not None:
            return self._info
        raise self._fatal or NotReady("the worker did not say what it serves", hint="see the log for its errors")

    def start(self, on_event: OnEvent) -> None:
        with self._lock:
            self._on_event = on_event
        self._begin()

    @property
    def state(self) -> Literal["loading", "ready", "dead"]:
        return self._state

    @property
    def worker_pid(self) -> int | None:
        link = self._link
        return None if link is None else link.pid

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._state == "dead" or self._closing is not None:
                reason = str(self._fatal) if self._fatal else "it was closed"
                raise NotReady(f"the engine is not running: {reason}", hint="restart the server")
            assert job.id not in self._tracked, f"job {job.id} was submitted twice"
            assert len(job.outputs) == job.request.num_outputs, job
            self._tracked[job.id] = Tracked(job)
            self._outbox.append(Submit(job))
        self._bell.ring()

    def cancel(self, job_id: str) -> None:
        with self._lock:
            tracked = self._tracked.get(job_id)
            if tracked is None or tracked.cancelled:
                return
            tracked.cancelled = True
            self._outbox.append(Cancel(job_id))
            if self._state != "ready" and not tracked.begun:
                # A worker that loads answers nobody, and has not touched this job.
                self._own_events.append(JobEvent(job_id=job_id, kind="cancelled"))
        self._bell.ring()

    def pause(self, job_id: str) -> None:
        """Stops a job at its next step boundary until :meth:`unpause`; unknown ids are ignored."""
        self._set_paused(job_id, True)

    def unpause(self, job_id: str) -> None:
        self._set_paused(job_id, False)

    def predict_seconds(self, request: VideoRequest) -> float | None:
        return None if self._info is None else predict(self._cost, request, self._info.limits)

    def metrics(self) -> dict[str, float]:
        with self._lock:
            values = dict(self._stats)
            for name, value in self._past.items():
                values[name] = values.get(name, 0.0) + value
            values["worker_restarts_total"] = float(self._restarts)
            values["jobs"] = float(len(self._tracked))
            if self._cost is not None:
                values["step_fixed_seconds"] = self._cost.step_s
                values["step_row_seconds"] = self._cost.row_s
        return values

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Lets the current unit end and running jobs be saved; after ``timeout_s`` the process is killed."""
        with self._lock:
            began = self._pump.ident is not None
            if self._closing is None:
                self._closing = time.monotonic() + timeout_s
                self._outbox.append(Stop())
        self._bell.ring()
        if not began:
            self._state = "dead"
            self._bell.close()
            return
        if threading.current_thread() is self._pump:
            return  # called from on_event: the pump ends by itself
        self._pump.join(timeout_s)
        if self._pump.is_alive():
            link = self._link
            if link is not None:
                link.kill()  # also frees a pump that is stuck in a write
            self._pump.join(5.0)

    # Everything below runs in the pump thread, but for the helpers that take the lock.

    def _run(self) -> None:
        while True:
            try:
                if not self._turn():
                    break
            except Exception:  # one bad event must not leave all jobs without an owner
                log.exception("executor")
                time.sleep(0.1)
        self._give_up(WorkerDied("the engine was closed", hint="it goes on after the next start"))
        self._bell.close()

    def _turn(self) -> bool:
        """One round: start, write, wait, read, bury. False ends the thread."""
        link = self._link
        if link is None:
            if self._closing is not None:
                return False
            delay = self._start_at - time.monotonic()
            if self._state == "dead" or delay > 0:
                self._bell.wait([], None if self._state == "dead" else delay)
            else:
                self._start_worker()
            self._emit_own()
            return True
        self._flush(link)
        timeout = None if self._closing is None else self._closing - time.monotonic()
        if timeout is not None and (timeout <= 0 or self._state != "ready"):
            link.kill()  # one that still loads has nothing to save
            timeout = 1.0
        self._bell.wait(link.waitables(), timeout)
        alive = link.alive()  # asked before reading: whatever a dead one said is then already here
        for message in link.receive():
            self._handle(message)
        self._emit_own()
        if not alive:
            self._bury(link)
        return True

    def _start_worker(self) -> None:
        with self._lock:
            stops = [c for c in self._outbox if isinstance(c, Stop)]
            self._outbox = deque(Submit(t.job) for t in self._tracked.values() if not t.cancelled)
            self._outbox.extend(Pause(t.job.id, True) for t in self._tracked.values() if t.paused)
            self._outbox.extend(stops)
            self._at = ()
        try:
            self._link = Link(self._options)
        except OSError as error:  # no memory or no process left for now
            self._start_failed(f"cannot start a worker: {error}")

    def _flush(self, link: Link) -> None:
        while True:
            with self._lock:
                if not self._outbox:
                    return
                command = self._outbox.popleft()
            if not link.send(command):
                return  # it is dead: the next one gets everything anew

    def _handle(self, message: Message) -> None:
        match message:
            case JobEvent():
                self._deliver(message)
            case At(job_ids=ids):
                self._at = ids
            case Stats(values=values):
                with self._lock:
                    self._stats = values
            case Learned(cost=cost):
                self._cost = cost
                self._failures_in_row = 0
            case Hello(info=info):
                self._info = info
                self._info_known.set()
            case Ready(cost=cost):
                self._cost = self._cost or cost
                self._failed_starts = 0
                self._state = "ready"
                log.info("the worker is ready after %.1f s", self._link.age_s if self._link else 0.0)
            case Fatal(error=error):
                self._die(error)

    def _deliver(self, event: JobEvent) -> None:
        """Passes an event on; the first last one of a job is also the only one."""
        with self._lock:
            tracked = self._tracked.get(event.job_id)
            if tracked is None:
                return
            tracked.begun = tracked.begun or event.kind in ("started", "resumed", "progress")
            if event.kind in TERMINAL:
                del self._tracked[event.job_id]
            on_event = self._on_event
        if on_event is None:
            return
        try:
            on_event(event)
        except Exception:
            log.exception("listener of job %s", event.job_id)

    def _bury(self, link: Link) -> None:
        """The worker is gone: settle its jobs, and plan the next one."""
        code = link.end()
        self._link = None
        with self._lock:
            for name, value in self._stats.items():
                if name.endswith("_total"):
                    self._past[name] = self._past.get(name, 0.0) + value
            self._stats = {}
        if self._closing is not None or self._state == "dead":
            return
        log.error("the worker died (exit code %s) while at %s", code, ", ".join(self._at) or "no job")
        self._restarts += 1
        if self._state == "ready":
            self._failed_starts = 0
        if link.age_s > STABLE_AFTER_S:
            self._failures_in_row = 0
        self._start_failed(f"the worker died (exit code {code})", was_ready=self._state == "ready")
        for tracked in list(self._tracked.values()):
            self._settle_after_death(tracked, code)

    def _start_failed(self, what: str, *, was_ready: bool = False) -> None:
        """Plans the next start, later after each failure; gives up where no start ever works."""
        self._state = "loading"
        self._failures_in_row += 1
        self._failed_starts += not was_ready
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._die(WorkerDied(f"{what}, {self._failed_starts} starts in a row", hint="see the log for its errors"))
        self._start_at = time.monotonic() + min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (self._failures_in_row - 1))

    def _settle_after_death(self, tracked: Tracked, code: int | None) -> None:
        job_id = tracked.job.id
        tracked.deaths += job_id in self._at
        if tracked.cancelled:
            self._deliver(JobEvent(job_id=job_id, kind="cancelled"))
        elif tracked.deaths >= MAX_DEATHS:
            error = WorkerDied(
                f"the worker died {tracked.deaths} times while it ran this job (exit code {code})",
                hint="a shorter or smaller clip may need less memory",
            )
            self._deliver(JobEvent(job_id=job_id, kind="failed", error=error_dict(error)))

    def _die(self, error: TalkiesError) -> None:
        """There will be no worker any more."""
        log.error("the engine is dead: %s", error)
        with self._lock:
            self._state, self._fatal = "dead", error
            self._outbox.clear()
        self._info_known.set()
        self._give_up(error)

    def _give_up(self, error: TalkiesError) -> None:
        self._state = "dead"
        for job_id in list(self._tracked):
            self._deliver(JobEvent(job_id=job_id, kind="failed", error=error_dict(error)))

    def _emit_own(self) -> None:
        while self._own_events:
            self._deliver(self._own_events.popleft())

    def _begin(self) -> None:
        with self._lock:
            if self._pump.ident is None and self._closing is None:
                self._pump.start()

    def _set_paused(self, job_id: str, paused: bool) -> None:
        with self._lock:
            tracked = self._tracked.get(job_id)
            if tracked is None:
                return
            tracked.paused = paused
            self._outbox.append(Pause(job_id, paused))
        self._bell.ring()
