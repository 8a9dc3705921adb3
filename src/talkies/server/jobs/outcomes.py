"""What the engine says about jobs -> the store, the live states, metrics, webhooks and files.

Events arrive on the engine's own thread. Nothing here may raise into it, and nothing a single job does may stop the
others.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from talkies.engine.port.facts import Facts
from talkies.engine.port.service import RESTARTING, JobEvent
from talkies.errors import TalkiesError
from talkies.server.config import ServerConfig
from talkies.server.errors import error_object
from talkies.server.jobs.artifacts import Artifacts
from talkies.server.jobs.live import Live
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.store import JobStore
from talkies.server.jobs.view import event_object
from talkies.server.jobs.webhook import Webhooks
from talkies.server.metrics import Metrics

log = logging.getLogger(__name__)
MISSING_FILE = {"code": "output_failed", "message": "the engine wrote no file", "param": None, "status": 500}


class Follower:
    """Thread-safe. ``closing`` is set when the server stops: jobs that the engine then gives up have not ended."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        store: JobStore,
        artifacts: Artifacts,
        live: Live,
        hide: Callable[[str], str],
        metrics: Metrics,
        webhooks: Webhooks,
        closing: threading.Event,
    ) -> None:
        self._config, self._store, self._artifacts, self._live = config, store, artifacts, live
        self._hide = hide
        self._metrics, self._webhooks, self._closing = metrics, webhooks, closing
        self._lock = threading.Lock()
        self._folders: dict[str, str] = {}  # job -> folder, while the engine may still write to it
        self._names: dict[str, dict[str, str]] = {}  # job -> what its log lines begin with
        self._last_step: dict[str, tuple[int, float]] = {}
        self._unsettled: dict[str, tuple[JobEvent, str]] = {}  # last events that the disk refused to record, and why

    def follow(self, job_id: str, folder: str) -> None:
        """The engine is about to get it."""
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        with self._lock:
            self._folders[job_id] = folder
            self._names[job_id] = {"job_id": job_id} | ({} if request_id is None else {"request_id": request_id})

    def follows(self, job_id: str) -> bool:
        """Whether the engine may still write to its folder."""
        with self._lock:
            return job_id in self._folders

    def settle_again(self, job_id: str | None = None) -> None:
        """Ends that could not be written, of all jobs or of one, are tried once more."""
        with self._lock:
            unsettled = [each for each in self._unsettled if job_id in (None, each)]
            events = [self._unsettled.pop(each)[0] for each in unsettled]
        for event in events:
            self.on_event(event)

    def unrecorded(self, job_id: str) -> str | None:
        """Why the end of a job could not be written yet; None where it could, or where it has not ended."""
        with self._lock:
            return self._unsettled[job_id][1] if job_id in self._unsettled else None

    def on_event(self, event: JobEvent) -> None:
        with structlog.contextvars.bound_contextvars(**self._names.get(event.job_id, {"job_id": event.job_id})):
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
                        self._unsettled[event.job_id] = (event, str(error))
                    self._live.unrecorded(event.job_id)
            return
        if self._closing.is_set():
            return
        if event.kind == "preview":
            if event.jpeg:
                self._live.preview(event.job_id, event.jpeg)
        elif event.kind == "queued":
            state = self._live.get(event.job_id)
            if state is not None:
                # While a worker is replaced its jobs say so; the next one takes them up again, one by one.
                stage = event.stage or (None if state.stage == RESTARTING else state.stage)
                self._live.update(event.job_id, paused=state.begun, stage=stage)
        else:
            self._on_progress(event)

    def _on_progress(self, event: JobEvent) -> None:
        """started, resumed, progress: whatever comes first makes the job in_progress."""
        state = self._live.get(event.job_id)
        if state is None:
            return
        if not state.begun:
            # By the monotonic clock: the other one is set now and then, by hours.
            now = time.monotonic()
            self._live.update(event.job_id, begun_at=now)
            waited_s = None if state.accepted_at is None else round(now - state.accepted_at, 3)
            planned = self._store.peek(event.job_id)
            facts = None if planned is None else self._facts(event, planned.facts)
            record = self._store.start(event.job_id, facts and replace(facts, queue_wait_s=waited_s))
            if record is not None:
                log.info("began")
                self._metrics.started(max(0.0, time.time() - record.created_at) if waited_s is None else waited_s)
        if event.kind == "resumed":
            self._metrics.event("resumed")
        changes: dict[str, Any] = {"begun": True, "paused": False}
        for name in ("stage", "step", "num_steps", "fraction"):
            value = getattr(event, name)
            if value is not None:
                changes[name] = value
        if event.eta_s is not None:
            changes["left_s"] = event.eta_s
        self._time_step(event)
        self._live.update(event.job_id, **changes)

    def _time_step(self, event: JobEvent) -> None:
        if event.stage != "denoise" or event.step is None:
            return
        now = time.monotonic()
        before = self._last_step.get(event.job_id)
        self._last_step[event.job_id] = (event.step, now)
        if before is not None and event.step > before[0]:
            self._metrics.step((now - before[1]) / (event.step - before[0]))

    def _settle(self, event: JobEvent) -> None:
        job_id = event.job_id
        with self._lock:
            folder = self._folders.get(job_id)
        if folder is None:
            return  # an end already settled, or a job that was never ours
        state = self._live.get(job_id)
        if event.kind == "finished":
            record = self._settle_finished(event, folder)
        else:
            error = event.error or {"code": "cancelled", "message": "cancelled", "param": None, "status": 499}
            gone = self._store.peek(job_id) is None  # a full disk takes no record even of nothing
            record = None if gone else self._store.fail(job_id, self._public_error(error), ttl_s=self._config.ttl_s)
        self.forget(job_id, folder, keep_outputs=record is not None and record.status == "completed")
        if record is None:
            log.info("cancelled")
            self._metrics.ended("abort", latency_s=None, facts=None)
            return
        latency_s = max(0.0, (record.completed_at or 0.0) - record.created_at)
        if state is not None and state.accepted_at is not None:
            latency_s = time.monotonic() - state.accepted_at
        done = record.status == "completed"
        code = None if done or record.error is None else str(record.error["code"])
        self._metrics.ended("stop" if done else "abort", latency_s=latency_s, facts=event.facts, code=code)
        log.info("%s after %.1f s%s", record.status, latency_s, f": {code}" if code else "")
        self.call_webhook(record)
        self._live.end(job_id, "done")

    def _settle_finished(self, event: JobEvent, folder: str) -> JobRecord | None:
        record = self._store.peek(event.job_id)
        if record is None:
            return None
        outputs = self._artifacts.outputs(folder, record.num_outputs)
        if not all(path.is_file() and path.stat().st_size for path in outputs):
            return self._store.fail(event.job_id, MISSING_FILE, ttl_s=self._config.ttl_s)
        stored_bytes = self._artifacts.size_bytes(folder)
        state, facts = self._live.get(event.job_id), self._facts(event, record.facts)
        if state is not None and state.begun_at is not None:
            facts = replace(facts, took_s=round(time.monotonic() - state.begun_at, 3))
        return self._store.complete(event.job_id, facts, stored_bytes=stored_bytes, ttl_s=self._config.ttl_s)

    def forget(self, job_id: str, folder: str, *, keep_outputs: bool = False) -> None:
        (self._artifacts.drop_inputs if keep_outputs else self._artifacts.drop)(folder)
        with self._lock:
            self._folders.pop(job_id, None)
            self._names.pop(job_id, None)
        self._last_step.pop(job_id, None)
        if self._store.peek(job_id) is None:
            # Deleted while it ended: whoever deleted it saw the engine still at work and left the files to us.
            self._artifacts.drop(folder)
            self._live.end(job_id, "deleted")

    def _facts(self, event: JobEvent, known: Facts) -> Facts:
        """What the engine says, with what only the server knows; without paths of the server."""
        if event.facts is None:
            return known
        warnings = tuple(self._hide(warning) for warning in event.facts.warnings)
        return replace(event.facts, warnings=warnings, remix_of=known.remix_of, queue_wait_s=known.queue_wait_s)

    def _public_error(self, error: dict[str, Any]) -> dict[str, Any]:
        """Paths of the server are nobody's business."""
        param = error.get("param")
        message = self._hide(str(error.get("message") or "failed"))
        plain = TalkiesError(message, param=None if param is None else self._hide(str(param)))
        return {
            **error_object(plain),
            "code": str(error.get("code") or "internal_error"),
            "status": int(error.get("status") or 500),
        }

    def call_webhook(self, record: JobRecord) -> None:
        if record.webhook_url is not None and record.webhook_state == "pending":
            self._webhooks.send(record.id, record.webhook_url, event_object(record, self._live))
