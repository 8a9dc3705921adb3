"""Between the store, which remembers, and the engine, which works: every accepted job reaches one end state.

This is the way in: accept, hand over, delete, pick up after a restart. What the engine says comes back through
:mod:`talkies.server.jobs.outcomes`.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from dataclasses import replace

from talkies.capacity.demand import Demand
from talkies.engine.port.service import EngineService, Job, JobEvent
from talkies.errors import InvalidRequest, NotReady, TalkiesError
from talkies.files.paths import public_name
from talkies.request import VideoRequest
from talkies.server.config import ServerConfig
from talkies.server.edge.auth import ANONYMOUS, owner_of
from talkies.server.errors import Conflict, error_object
from talkies.server.jobs.admission import Admission
from talkies.server.jobs.artifacts import Artifacts
from talkies.server.jobs.data_folder import usable
from talkies.server.jobs.live import Live
from talkies.server.jobs.outcomes import Follower
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.store import JobStore
from talkies.server.jobs.webhook import Webhooks
from talkies.server.metrics import Metrics, gauges
from talkies.server.private import PrivatePaths

log = logging.getLogger(__name__)
CANCELLED = {"code": "cancelled", "message": "cancelled on request", "param": None, "status": 499}
MAX_ATTEMPTS = 5  # crashes of the server while one job ran; a job that kills it must not do so for ever


class Coordinator:
    """Owns the life of jobs. All methods are thread-safe and may block for a disk write."""

    def __init__(self, service: EngineService, config: ServerConfig) -> None:
        self.service, self.config = service, config
        self.store = JobStore(config.database)  # first: a folder in use is known before a model is opened
        try:
            self.limits = service.info.limits
            with usable(config.data_dir):
                self.artifacts = Artifacts(config)
        except BaseException:
            self.store.close()
            raise
        self.live = Live(service.info.policy, root_path=config.root_path)
        self.model_name = config.served_model_name or public_name(service.info.model_name)
        self.private = PrivatePaths(config, service.info.model_name)
        self.metrics = Metrics(self.model_name)
        self.metrics.gauges(self._gauges)
        self.webhooks = Webhooks(config, self._webhook_result)
        self._was_ready = False
        self._lock = threading.Lock()
        self._discarded: list[JobRecord] = []  # that the disk did not let go yet
        self._closing = threading.Event()
        self.follower = Follower(
            config,
            store=self.store,
            artifacts=self.artifacts,
            live=self.live,
            hide=self.private.hide,
            metrics=self.metrics,
            webhooks=self.webhooks,
            closing=self._closing,
        )
        self._sweeper = threading.Thread(target=self._sweep_for_ever, name="sweeper", daemon=True)

    def start(self) -> None:
        """Picks up what an earlier process left, then lets the engine load."""
        self.store.remove_sync()  # their clients left with the connections
        if self.config.api_keys:
            # Made while there was no key: they would be nobody's, and yet on the disk.
            adopted = self.store.adopt(ANONYMOUS, owner_of(self.config.api_keys[0]))
            if adopted:
                log.info("%d jobs of the time without a key now belong to the first --api-key", adopted)
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
        self.service.start(self.follower.on_event, self.live.reorder)
        for record in waiting:
            try:
                self._hand_over(record)
            except InvalidRequest as error:  # accepted by another version of talkies
                self.follower.on_event(JobEvent(job_id=record.id, kind="failed", error=error_object(error)))
            except (TalkiesError, OSError) as error:
                log.error("job %s stays in the queue until the next start: %s", record.id, error)
        self.webhooks.start()
        for record in self.store.pending_webhooks():
            self.follower.call_webhook(record)
        self._sweeper.start()

    def submit(self, record: JobRecord, request: VideoRequest) -> tuple[JobRecord, bool]:
        """(job, True), or the earlier job of its Idempotency-Key and False.

        Raises ``Busy``, ``Conflict``, ``NotReady``.
        """
        self.require_ready()
        demand = self.service.demand_of(request)
        self.service.check_fits(request, demand)
        predicted_s = self.service.predict_seconds(demand)
        record = replace(record, predicted_s=predicted_s)
        stored, created = self.store.insert(record, Admission(config=self.config, predicted_s=predicted_s))
        if created:
            self.metrics.event("accepted")
            try:
                self._hand_over(stored, demand, accepted_at=time.monotonic())
            except BaseException:
                self.store.remove(stored.id)
                self.follower.forget(stored.id, stored.folder)
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
        try:
            removed = self.store.remove(record.id)
        except sqlite3.OperationalError:
            if not record.ended:
                raise
            # Even a removal has to be written: on a full disk the clip's own bytes make room for it.
            self.artifacts.drop(record.folder)
            removed = self.store.remove(record.id)
        if removed is None:
            return
        if self.follower.follows(record.id):
            self.metrics.event("cancelled")
            self.service.cancel(record.id)
        else:
            self.artifacts.drop(record.folder)
        self.live.end(record.id, "deleted")

    def discard(self, record: JobRecord) -> None:
        """Deletes a job that nobody can ask for any more, now or, if the disk refuses even that, at a later sweep."""
        try:
            try:
                self.delete(record)
            except sqlite3.OperationalError:
                self.service.cancel(record.id)
                self.artifacts.drop(record.folder)  # which makes room for the removal
                self.delete(record)
        except (sqlite3.Error, OSError) as error:
            log.error("cannot delete job %s, trying again: %s", record.id, error)
            with self._lock:
                self._discarded.append(record)
        else:
            self.follower.settle_again(record.id)

    def cancel(self, record: JobRecord) -> JobRecord:
        """Ends a job and keeps its record, as failed with the code ``cancelled``: the contract has four status words,
        and clients poll until one of two. One that is cancelled already is returned as it is.

        Raises ``Conflict`` for a job that ended otherwise.
        """
        ended = self.store.fail(record.id, CANCELLED, ttl_s=self.config.ttl_s)
        if ended is None:
            now = self.store.get(record.id, record.owner)
            if now.error is not None and now.error.get("code") == CANCELLED["code"]:
                return now
            raise Conflict(f"Video {record.id} has ended: {now.status}", hint="DELETE removes it", param="video_id")
        self.metrics.event("cancelled")
        if self.follower.follows(record.id):
            self.service.cancel(record.id)  # its files go when the engine says that it has stopped
        else:
            self.artifacts.drop(record.folder)
        self.follower.call_webhook(ended)
        self.live.end(record.id, "done")
        return ended

    def close(self) -> None:
        """Running jobs stay in the store and go on after the next start."""
        self._closing.set()
        self.service.close()
        self.webhooks.close()
        if self._sweeper.is_alive():
            self._sweeper.join(5.0)
        self.store.requeue_running(crashed=False)
        self.store.close()

    def _hand_over(self, record: JobRecord, demand: Demand | None = None, *, accepted_at: float | None = None) -> None:
        self.follower.follow(record.id, record.folder)
        self.live.add(record.id, predicted_s=record.predicted_s, priority=record.priority, accepted_at=accepted_at)
        self.artifacts.prepare(record.folder)
        job = Job(
            id=record.id,
            request=VideoRequest.from_dict(record.request),
            outputs=self.artifacts.outputs(record.folder, record.num_outputs),
            resume_dir=self.artifacts.resume_dir(record.folder),
            priority=record.priority,
            # References are copies of ours; the engine has no reason to read anything else for this job.
            media_root=self.artifacts.uploads(record.folder),
            demand=demand,
        )
        self.service.submit(job)
        stored = self.store.peek(record.id)
        if stored is None or stored.ended:
            self.service.cancel(record.id)  # deleted or cancelled between insert and submit

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
            discarded, self._discarded = self._discarded, []
        for record in discarded:
            self.discard(record)
        self.follower.settle_again()
        now = time.time()
        for record in self.store.due(now):  # files first, which a full disk needs to record anything
            self.artifacts.drop(record.folder)
        for record in self.store.expire(now):
            log.info("job %s expired", record.id)

    def _gauges(self) -> dict[str, dict[str, float]]:
        ready = self.service.state == "ready"
        found = gauges(self.store.counts(), self.store.stored_bytes(), ready=ready, engine=self.service.metrics())
        info = self.service.info
        return found | {
            "talkies_attention": {info.attention: 1.0},
            "talkies_text_attention": {info.text_attention: 1.0},
        }
