"""``POST /v1/videos/sync``: blocks, answers with the MP4. The client's connection is the job's life line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from talkies.errors import NotReady, OutputError, TalkiesError
from talkies.server.create import create_job
from talkies.server.errors import TimedOut, error_response
from talkies.server.jobs.coordinator import Coordinator
from talkies.server.jobs.live import LAST, JobSubscriber
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.view import job_object


async def run(request: Request, coordinator: Coordinator, owner: str) -> Response:
    """Nothing stays behind: the job and its file go when the answer is sent, or when the client leaves."""
    record, _ = await create_job(request, coordinator, owner, is_sync=True)
    watcher = coordinator.live.watch(record.id)
    answered = False
    try:
        current = await _wait(request, coordinator, record, watcher)
        if current is None:
            # Nobody reads this answer unless an operator removed the job.
            return error_response(499, "the request was cancelled")
        if current.status == "failed":
            error = current.error or {}
            status = int(error.get("status", 500))
            message, param = str(error.get("message", "failed")), error.get("param")
            code, headers = error.get("code"), {"X-Request-Id": current.id}
            return error_response(status, message, code=code, param=param, headers=headers)
        answered = True
        return _answer(coordinator, current)
    finally:
        coordinator.live.unwatch(record.id, watcher)
        if not answered:
            # Also when this task itself is cancelled: the engine must not work for nobody.
            await asyncio.shield(run_in_threadpool(coordinator.discard, record))


async def _wait(
    request: Request, coordinator: Coordinator, record: JobRecord, watcher: JobSubscriber
) -> JobRecord | None:
    """The job at its end; None when the client left. Raises ``TimedOut``."""
    timeout_s = coordinator.config.sync_timeout_s
    left = asyncio.ensure_future(_disconnected(request))
    end = asyncio.ensure_future(_ended(coordinator, record, watcher))
    try:
        done, _ = await asyncio.wait({left, end}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if end in done:
            return end.result()
        if left in done:
            return None
        raise TimedOut(
            f"Video generation timed out after {timeout_s:g} s", hint="use POST /v1/videos and poll", param="server"
        )
    finally:
        left.cancel()
        end.cancel()


async def _ended(coordinator: Coordinator, record: JobRecord, watcher: JobSubscriber) -> JobRecord | None:
    while True:
        # Asked again now and then: an event missed while nobody watched must not block for ever.
        current = await run_in_threadpool(coordinator.store.peek, record.id)
        if current is None or current.ended:
            return current
        reason = coordinator.follower.unrecorded(record.id)
        if reason is not None:
            raise OutputError(
                f"the end of the job cannot be recorded: {reason}", hint="is the data folder's disk full?"
            )
        while not LAST & set(pending := await watcher.next(5.0)):
            if "unrecorded" in pending:
                break
            if "closing" in pending:
                raise NotReady("the server is stopping", hint="send it again when it is back", param="server")
            if not pending:
                break


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _answer(coordinator: Coordinator, record: JobRecord) -> Response:
    job = job_object(record, coordinator.live)
    try:
        path = coordinator.artifacts.find(record, None)
    except TalkiesError:
        coordinator.discard(record)
        raise
    headers = {
        "X-Request-Id": record.id,
        "X-Model": record.model.encode("ascii", "replace").decode(),
        "X-Inference-Time-S": f"{job['inference_time_s'] or 0:.3f}",
        "X-Stage-Durations": json.dumps(job["stage_durations"], separators=(",", ":")),
        "X-Video-Facts": json.dumps(
            {k: job[k] for k in ("size", "seconds", "num_frames", "seed", "num_forwards", "task")},
            separators=(",", ":"),
        ),
    }
    if job["peak_memory_mb"] is not None:
        headers["X-Peak-Memory-MB"] = f"{job['peak_memory_mb']:.0f}"
    return _OneTimeFile(coordinator, record, path, headers)


class _OneTimeFile(FileResponse):
    """Deletes the job after sending, also when the client hangs up half way (a background task would not run)."""

    def __init__(self, coordinator: Coordinator, record: JobRecord, path: Path, headers: dict[str, str]) -> None:
        super().__init__(path, media_type="video/mp4", filename=f"{record.id}.mp4", headers=headers)
        self._coordinator, self._record = coordinator, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(run_in_threadpool(self._coordinator.discard, self._record))
