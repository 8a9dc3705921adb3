"""The loop of one worker process: take orders, do one unit, look again.

Nothing a job does ends the loop: its failure is its own event, and what it held is given back. What can still end
the process (a kill, a crash in native code) is the executor's affair, which is told before each unit whose it is.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from talkies.codecs.checkpoint import find_parts, limits_of
from talkies.engine import build
from talkies.engine.batching import Batcher
from talkies.engine.config import EMBEDDED, EngineConfig, resolve
from talkies.engine.cost import CostModel, size_of
from talkies.engine.failure import as_talkies
from talkies.engine.messages import (
    At,
    Cancel,
    Command,
    Hello,
    Learned,
    Message,
    Pause,
    Ready,
    Stats,
    Submit,
    WorkerOptions,
)
from talkies.engine.preview import LatentToRGB, load_or_fit
from talkies.engine.running import JobRun, sweep_parts
from talkies.engine.scheduler import StepScheduler
from talkies.engine.service import JobEvent, ServiceInfo
from talkies.engine.warmup import warm_up
from talkies.model.checkpoint import model_hash

log = logging.getLogger(__name__)
PAUSED_AFTER_S = 1.0  # a begun job that others have passed for so long is shown as waiting
STATS_EVERY_S = 1.0
COUNTERS = ("forwards", "rows", "shared_forwards", "finished", "failed", "cancelled", "resumed", "previews")


def describe(options: WorkerOptions) -> ServiceInfo:
    """What the service can do, from configs alone. Raises ``ConfigError`` or ``CheckpointError``."""
    resolved = resolve(options.config)
    parts = find_parts(build.locate(options.config.model))
    return ServiceInfo(
        model_name=model_name(options.config),
        model_hash=model_hash(parts.root),
        limits=limits_of(parts),
        device=str(resolved.device),
        attention=resolved.attention,
        policy=options.policy,
    )


def model_name(config: EngineConfig) -> str:
    """A name for clients: of a folder its last part, since where it lies is nobody's business."""
    if config.model == EMBEDDED or not Path(config.model).expanduser().exists():
        return config.model
    return Path(config.model).expanduser().resolve().name


class Worker:
    """``inbox`` is filled by another thread with commands; None in it means stop."""

    def __init__(
        self, options: WorkerOptions, inbox: queue.SimpleQueue[Command | None], send: Callable[[Message], None]
    ) -> None:
        self._options, self._inbox, self._send = options, inbox, send
        self._scheduler = StepScheduler(options.policy, max_num_seqs=options.max_num_seqs)
        self._runs: dict[str, JobRun] = {}
        self._served_at: dict[str, float] = {}  # begun jobs; 0.0 once shown as waiting
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._last_at: tuple[str, ...] = ()
        self._last_stats_at = 0.0
        self._started_at = time.time()
        self._preview: LatentToRGB | None = None
        self._components: build.Components
        self._batcher: Batcher
        self._cost: CostModel

    def load(self) -> None:
        """Says what it is, loads, warms up, says that it is ready. Raises ``TalkiesError``."""
        self._send(Hello(describe(self._options)))
        self._components = build.load(self._options.config)
        self._batcher = Batcher(self._components)
        self._cost = warm_up(self._components)
        self._scheduler.max_step_rows = self._options.max_step_rows or self._cost.max_step_rows
        gc.collect()
        gc.freeze()  # what is here now stays: a collection after a job need not look at it
        self._send(Ready(self._cost))

    def run(self) -> None:
        """Until told to stop; what runs then is saved."""
        while self._drain(block=not self._has_work()):
            ids = self._scheduler.next()
            if ids:
                self._unit(ids)
            self._say_who_waits(ids)
            self._say_stats()
        for run in self._runs.values():
            run.close()

    def _has_work(self) -> bool:
        return bool(self._scheduler.next())

    def _drain(self, *, block: bool) -> bool:
        """Obeys all waiting commands; False means stop."""
        if block:
            self._announce(())
            self._say_stats(now=True)
        while True:
            try:
                command = self._inbox.get(block=block)
            except queue.Empty:
                return True
            block = False
            if command is None:
                return False
            if isinstance(command, Submit):
                self._admit(command)
            elif isinstance(command, Cancel):
                self._cancel(command.job_id)
            elif isinstance(command, Pause):
                self._pause(command)

    def _admit(self, command: Submit) -> None:
        job = command.job
        run = JobRun(
            self._components,
            job,
            self._send_event,
            save_every_s=self._options.save_every_s,
            preview_every_s=self._options.preview_every_s,
            media_root=self._options.media_root,
        )
        try:
            size = size_of(job.request, self._components.limits)
            if job.resume_dir is not None:
                for folder in {path.parent for path in job.outputs}:
                    sweep_parts(folder, before_s=self._started_at)
        except Exception as error:
            self._counts["failed"] += 1
            run.fail(as_talkies(error))
            return
        self._runs[job.id] = run
        self._scheduler.admit(job.id, rows=size.rows, remaining=size.row_forwards, priority=job.priority)
        run.waiting(self._scheduler.position(job.id))

    def _cancel(self, job_id: str) -> None:
        run = self._runs.get(job_id)
        if run is not None:
            self._counts["cancelled"] += 1
            run.cancel()
            self._forget(run)

    def _pause(self, command: Pause) -> None:
        run = self._runs.get(command.job_id)
        if run is None:
            return
        change = self._scheduler.pause if command.paused else self._scheduler.resume
        change(command.job_id)
        if command.paused:
            run.save()  # it may stay so for long
            self._served_at.pop(command.job_id, None)
            run.waiting(self._scheduler.position(command.job_id))

    def _unit(self, ids: tuple[str, ...]) -> None:
        self._announce(ids)
        runs = [self._runs[job_id] for job_id in ids]
        now = time.monotonic()
        self._served_at.update(dict.fromkeys(ids, now))
        if all(run.wants_forward for run in runs):
            self._forward(runs)
        else:
            assert len(runs) == 1, ids
            self._advance(runs[0])

    def _advance(self, run: JobRun) -> None:
        resumed_before = run.resumed_at
        try:
            run.advance()
        except Exception as error:
            self._failed(run, error)
            return
        if run.resumed_at is not None and resumed_before is None:
            self._counts["resumed"] += 1
        if run.done:
            self._counts["finished"] += 1
            if not run.shared and run.resumed_at is None:
                self._cost = self._cost.learned(run.size(), run.took_s)
                self._send(Learned(self._cost))
            self._forget(run)
        else:
            self._report(run, work=0.0)

    def _forward(self, runs: list[JobRun]) -> None:
        """One forward for all of ``runs``; if they do not fit together, one each."""
        began = time.perf_counter()
        states = [run.state for run in runs if run.state is not None]
        steps = [state.step for state in states]
        failure: Exception | None = None
        try:
            for run in runs:
                run.before_step()
            self._batcher.step(states)
            self._synchronize()
        except Exception as error:
            failure = error
        if failure is None:
            self._forward_done(runs, time.perf_counter() - began)
        elif len(runs) == 1:
            self._failed(runs[0], failure)
        else:
            log.warning("a forward of %d requests failed (%s): one by one", len(runs), failure)
            failure.__traceback__ = None  # or the tensors of the failed forward would stay during the next ones
            self._batcher.forget()
            # One that had already moved keeps its step; each of the others shows whether the fault is its own.
            for run, state, step in zip(runs, states, steps, strict=True):
                if state.step == step:
                    self._forward([run])
                else:
                    self._stepped(run, 0.0)

    def _forward_done(self, runs: list[JobRun], seconds: float) -> None:
        self._counts["forwards"] += 1
        self._counts["shared_forwards"] += len(runs) > 1
        self._counts["rows"] += sum(run.state.num_rows for run in runs if run.state is not None)
        for run in runs:
            run.shared = run.shared or len(runs) > 1
            self._stepped(run, seconds / len(runs))

    def _stepped(self, run: JobRun, seconds: float) -> None:
        assert run.state is not None
        try:
            run.stepped(seconds, self._cost, self._preview_map)
        except Exception as error:
            self._failed(run, error)
            return
        self._report(run, work=float(run.state.num_rows))

    def _report(self, run: JobRun, *, work: float) -> None:
        """Keeps the scheduler's books. Units other than forwards count as nothing: they are short and come once."""
        if run.state is None:
            self._scheduler.report(run.job.id, work=work, remaining=run.size().row_forwards, packed=False)
            return
        rows = run.state.num_rows
        remaining = float(rows * run.forwards_left())
        self._scheduler.report(run.job.id, work=work, remaining=remaining, rows=rows, batch_key=run.batch_key)

    def _failed(self, run: JobRun, error: Exception) -> None:
        self._counts["failed"] += 1
        known = as_talkies(error)
        # The traceback holds every frame, and each frame its tensors.
        error.__traceback__ = None
        error.__context__ = error.__cause__ = None
        run.fail(known)
        self._forget(run)
        self._components.residency.release()  # others fetch again what they need, into whole memory
        self._components.give_back()

    def _forget(self, run: JobRun) -> None:
        """Everything of an ended job is given back, to the system as far as it takes it."""
        self._scheduler.remove(run.job.id)
        self._runs.pop(run.job.id, None)
        self._served_at.pop(run.job.id, None)
        self._batcher.forget()
        run.state = None
        gc.collect()
        _trim_heap()

    def _preview_map(self) -> LatentToRGB:
        if self._preview is None:
            c = self._components
            c.residency.enter("video")
            self._preview = load_or_fit(c.video, c.limits, c.model_hash, self._options.cache_dir)
        return self._preview

    def _announce(self, ids: tuple[str, ...]) -> None:
        if ids != self._last_at:
            self._last_at = ids
            self._send(At(ids))

    def _send_event(self, event: JobEvent) -> None:
        self._counts["previews"] += event.kind == "preview"
        self._send(event)

    def _say_who_waits(self, ids: tuple[str, ...]) -> None:
        if self._options.policy == "fair":
            return  # there everybody waits for the others all the time
        now = time.monotonic()
        for job_id, served_at in self._served_at.items():
            if served_at and job_id not in ids and now - served_at > PAUSED_AFTER_S:
                self._served_at[job_id] = 0.0
                self._runs[job_id].waiting(None)

    def _say_stats(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._last_stats_at > STATS_EVERY_S:
            self._last_stats_at = time.monotonic()
            values = {f"{name}_total": value for name, value in self._counts.items()}
            values |= {"active": float(self._scheduler.num_active), "rss_bytes": float(_rss_bytes())}
            values["max_step_rows"] = float(self._scheduler.max_step_rows)
            self._send(Stats(values))

    def _synchronize(self) -> None:
        # A step is done when the device has done it: progress counts finished work, and a fault shows here.
        if self._components.config.device.type == "cuda":
            torch.cuda.synchronize(self._components.config.device)


def _rss_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096
    return 0


def _trim_heap() -> None:
    """glibc keeps freed memory in its arenas; a server that is idle should not look like one that is busy."""
    libc: Any = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> Any:
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        _ = libc.malloc_trim  # absent outside glibc
        return libc
    return None
