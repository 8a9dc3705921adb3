"""Between the store, which remembers, and the engine, which works: every accepted job reaches one end state.

The engine's events arrive on its own thread. Nothing here may raise into it, and nothing a single job does may stop
the others.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from dataclasses import replace
from typing import Any

import structlog

from talkies.engine.service import EngineService, Job, JobEvent
from talkies.errors import InvalidRequest, NotReady, TalkiesError
from talkies.request import VideoRequest
from talkies.server.admission import Admission
from talkies.server.artifacts import Artifacts
from talkies.server.config import ServerConfig
from talkies.server.errors import error_object
from talkies.server.jobs import JobStore
from talkies.server.live import Live
from talkies.server.metrics import Metrics, gauges
from talkies.server.record import JobRecord
from talkies.server.view import job_object
from talkies.server.webhook import Webhooks

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 5  # crashes of the server while one job ran; a job that kills it must not do so for ever
MISSING_FILE = {"code": "output_failed", "message": "the engine wrote no file", "param": None, "status": 500}


class Coordinator:
    """Owns the life of jobs. All methods are thread-safe and may block for a disk write."""

    def __init__(self, service: EngineService, config: ServerConfig) -> None:
        self.service, self.config = service, config
        self.store = JobStore(config.database)  # first: a folder in use is known before a model is opened
        try:
            self.limits = service.info.limits
        except BaseException:
            self.store.close()
            raise
        self.artifacts = Artifacts(config)
        self.live = Live()
        self.model_name = config.served_model_name or service.info.model_name
        self.metrics = Metrics(self.model_name)
        self.metrics.gauges(self._gauges)
        self.webhooks = Webhooks(config, self._webhook_result)
        self._lock = threading.Lock()
        self._folders: dict[str, str] = {}  # job -> folder, while the engine may still write to it
        self._last_step: dict[str, tuple[int, float]] = {}
        self._unsettled: list[JobEvent] = []  # last events that the disk refused to record
        self._was_ready = False
        self._closing = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_for_ever, name="sweeper", daemon=True)

    def start(self) -> None:
        """Picks up what an earlier process left, then lets the engine load."""
        self.store.remove_sync()  # their clients left with the connections
        interrupted = self.store.requeue_running(crashed=True)
        for record in self.store.waiting():
            if record.attempts >= MAX_ATTEMPTS:
                message = f"the server stopped {record.attempts} times while this job ran"
                error = {"code": "server_restarted", "message": message, "param": None, "status": 500}
                self.store.fail(record.id, error, ttl_s=self.config.ttl_s)
        removed = self.artifacts.sweep(
            unfinished=self.store.folders("queued", "in_progress"), completed=self.store.folders("completed")
        )
        waiting = self.store.waiting()
        if waiting or removed:
            log.info("resuming %d jobs (%d had begun), removed %d leftovers", len(waiting), interrupted, removed)
        self.service.start(self._on_event)
        for record in waiting:
            try:
                self._hand_over(record)
            except InvalidRequest as error:  # accepted by another version of talkies
                self._on_event(JobEvent(job_id=record.id, kind="failed", error=error_object(error)))
            except (TalkiesError, OSError) as error:
                log.error("job %s stays in the queue until the next start: %s", record.id, error)
        self.webhooks.start()
        for record in self.store.pending_webhooks():
            self._call_webhook(record)
        self._sweeper.start()

    def submit(self, record: JobRecord, request: VideoRequest) -> tuple[JobRecord, bool]:
        """(job, True), or the earlier job of its Idempotency-Key and False.

        Raises ``Busy``, ``Conflict``, ``NotReady``.
        """
        self.require_ready()
        self.service.check_fits(request)
        predicted_s = self.service.predict_seconds(request)
        record = replace(record, predicted_s=predicted_s)
        try:
            stored, created = self.store.insert(record, Admission(config=self.config, predicted_s=predicted_s))
        except TalkiesError:
            self.metrics.event("refused")
            raise
        if created:
            self.metrics.event("accepted")
            try:
                self._hand_over(stored)
            except BaseException:
                self.store.remove(stored.id)
                self._forget(stored.id, stored.folder)
                raise
        return stored, created

    def require_ready(self) -> None:
        """Raises ``NotReady``. Once warm, jobs are accepted while a worker that died is replaced: the queue is safe."""
        state = self.service.state
        self._was_ready = self._was_ready or state == "ready"
        if state == "dead" or not self._was_ready:
            what = "the model is still loading" if state == "loading" else "the engine is dead"
            raise NotReady(what, hint="try again when /health answers 200", param="server")

    def delete(self, record: JobRecord) -> None:
        """Gone at once for every client; the engine stops at its next step, and then the files go too."""
        if self.store.remove(record.id) is None:
            return
        with self._lock:
            running = record.id in self._folders
        if running:
            self.metrics.event("cancelled")
            self.service.cancel(record.id)
        else:
            self.artifacts.drop(record.folder)
        self.live.end(record.id, "deleted")

    def close(self) -> None:
        """Running jobs stay in the store and go on after the next start."""
        self._closing.set()
        self.service.close()
        self.webhooks.close()
        if self._sweeper.is_alive():
            self._sweeper.join(5.0)
        self.store.requeue_running(crashed=False)
        self.store.close()

    def _hand_over(self, record: JobRecord) -> None:
        with self._lock:
            self._folders[record.id] = record.folder
        self.live.add(record.id, predicted_s=record.predicted_s)
        self.artifacts.prepare(record.folder)
        job = Job(
            id=record.id,
            request=VideoRequest.from_dict(record.request),
            outputs=self.artifacts.outputs(record.folder, record.num_outputs),
            resume_dir=self.artifacts.resume_dir(record.folder),
            priority=record.priority,
            # References are copies of ours; the engine has no reason to read anything else for this job.
            media_root=self.artifacts.uploads(record.folder),
        )
        self.service.submit(job)
        if self.store.peek(record.id) is None:
            self.service.cancel(record.id)  # deleted between insert and submit

    def _on_event(self, event: JobEvent) -> None:
        with structlog.contextvars.bound_contextvars(job_id=event.job_id):
            try:
                self._handle(event)
            except Exception:
                log.exception("event %s", event.kind)

    def _handle(self, event: JobEvent) -> None:
        if event.kind in ("finished", "failed", "cancelled"):
            # While closing, an engine that gives up its jobs does not end them: they run again after the start.
            if not self._closing.is_set() or event.kind == "finished":
                try:
                    self._settle(event)
                except (sqlite3.Error, OSError) as error:
                    log.error("cannot record the end, trying again: %s", error)
                    with self._lock:
                        self._unsettled.append(event)
            return
        if self._closing.is_set():
            return
        if event.kind == "preview":
            if event.jpeg:
                self.live.preview(event.job_id, event.jpeg)
        elif event.kind == "queued":
            state = self.live.get(event.job_id)
            began = state is not None and state.queue_position is None
            place = {} if event.queue_position is None or began else {"queue_position": event.queue_position}
            self.live.update(event.job_id, paused=began, **place)
        else:
            self._on_progress(event)

    def _on_progress(self, event: JobEvent) -> None:
        """started, resumed, progress: whatever comes first makes the job in_progress."""
        state = self.live.get(event.job_id)
        if state is None:
            return
        if state.queue_position is not None:
            record = self.store.start(event.job_id, event.facts)
            if record is not None:
                log.info("began")
                self.metrics.started(max(0.0, time.time() - record.created_at))
        if event.kind == "resumed":
            self.metrics.event("resumed")
        changes: dict[str, Any] = {"queue_position": None, "paused": False}
        for name in ("stage", "step", "num_steps", "fraction", "eta_s"):
            value = getattr(event, name)
            if value is not None:
                changes[name] = value
        self._time_step(event)
        self.live.update(event.job_id, **changes)

    def _time_step(self, event: JobEvent) -> None:
        if event.stage != "denoise" or event.step is None:
            return
        now = time.monotonic()
        before = self._last_step.get(event.job_id)
        self._last_step[event.job_id] = (event.step, now)
        if before is not None and event.step > before[0]:
            self.metrics.step((now - before[1]) / (event.step - before[0]))

    def _settle(self, event: JobEvent) -> None:
        job_id = event.job_id
        with self._lock:
            folder = self._folders.get(job_id)
        if folder is None:
            return  # an end already settled, or a job that was never ours
        if event.kind == "finished":
            record = self._settle_finished(event, folder)
        else:
            error = event.error or {"code": "cancelled", "message": "cancelled", "param": None, "status": 499}
            record = self.store.fail(job_id, self._public_error(error), ttl_s=self.config.ttl_s)
        self._forget(job_id, folder, keep_outputs=record is not None and record.status == "completed")
        if record is None:
            log.info("cancelled")
            self.metrics.ended("abort", latency_s=None, facts={})
            return
        latency_s = (record.completed_at or 0.0) - record.created_at
        done = record.status == "completed"
        code = None if done or record.error is None else str(record.error["code"])
        self.metrics.ended("stop" if done else "abort", latency_s=latency_s, facts=event.facts, code=code)
        log.info("%s after %.1f s%s", record.status, latency_s, f": {code}" if code else "")
        self._call_webhook(record)
        self.live.end(job_id, "done")

    def _settle_finished(self, event: JobEvent, folder: str) -> JobRecord | None:
        record = self.store.peek(event.job_id)
        if record is None:
            return None
        outputs = self.artifacts.outputs(folder, record.num_outputs)
        if not all(path.is_file() and path.stat().st_size for path in outputs):
            return self.store.fail(event.job_id, MISSING_FILE, ttl_s=self.config.ttl_s)
        stored_bytes = self.artifacts.size_bytes(folder)
        return self.store.complete(event.job_id, event.facts, stored_bytes=stored_bytes, ttl_s=self.config.ttl_s)

    def _forget(self, job_id: str, folder: str, *, keep_outputs: bool = False) -> None:
        (self.artifacts.drop_inputs if keep_outputs else self.artifacts.drop)(folder)
        with self._lock:
            self._folders.pop(job_id, None)
        self._last_step.pop(job_id, None)
        if self.store.peek(job_id) is None:
            # Deleted while it ended: whoever deleted it saw the engine still at work and left the files to us.
            self.artifacts.drop(folder)
            self.live.end(job_id, "deleted")

    def _public_error(self, error: dict[str, Any]) -> dict[str, Any]:
        """Paths of the server are nobody's business."""
        hidden = str(error.get("message") or "failed").replace(f"{self.config.data_dir}/", "")
        plain = TalkiesError(hidden, param=error.get("param"))
        return {
            **error_object(plain),
            "code": str(error.get("code") or "internal_error"),
            "status": int(error.get("status") or 500),
        }

    def _call_webhook(self, record: JobRecord) -> None:
        if record.webhook_url is not None and record.webhook_state == "pending":
            self.webhooks.send(record.id, record.webhook_url, job_object(record, self.live))

    def _webhook_result(self, job_id: str, result: str) -> None:
        self.metrics.webhook(result)
        self.store.set_webhook_state(job_id, result)

    def _sweep_for_ever(self) -> None:
        while not self._closing.wait(self.config.sweep_interval_s):
            try:
                self.sweep()
            except Exception:
                log.exception("sweep")

    def sweep(self) -> None:
        """Record and files of an expired job go together; ends that could not be written are tried again."""
        with self._lock:
            unsettled, self._unsettled = self._unsettled, []
        for event in unsettled:
            self._on_event(event)
        for record in self.store.expire(time.time()):
            self.artifacts.drop(record.folder)
            log.info("job %s expired", record.id)

    def _gauges(self) -> dict[str, dict[str, float]]:
        ready = self.service.state == "ready"
        return gauges(self.store.counts(), self.store.stored_bytes(), ready=ready, engine=self.service.metrics())
