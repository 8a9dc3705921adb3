"""``GET /v1/videos/{id}/events``: one job as server-sent events.

event: job        the job object: first, and again at the end
event: progress   queue_position, status, stage, step, num_steps, progress, eta_s, paused
event: preview    {"jpeg": base64} while denoising
event: done       the finished or failed job object; the stream ends
event: deleted    {"id"}; the stream ends
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool

from talkies.server.jobs.coordinator import Coordinator
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.view import job_object

HEARTBEAT_S = 10.0
SCHEMA = {  # of one event, as OpenAPI tools read a stream; data is JSON text
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["job", "progress", "preview", "done", "deleted"]},
        "data": {"type": "string"},
    },
}
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not hold events back


def frame(event: str, data: dict[str, Any]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(coordinator: Coordinator, record: JobRecord) -> AsyncIterator[bytes]:
    """Watches before it looks, so that nothing falls between the first job object and the events.

    A stream that ends without ``done`` or ``deleted`` belongs to a server that stops: watch again later."""
    live, store = coordinator.live, coordinator.store
    watcher = live.watch(record.id)
    try:
        yield b"retry: 2000\n\n"
        current = await run_in_threadpool(store.peek, record.id)
        if current is None:
            yield frame("deleted", {"id": record.id})
            return
        yield frame("job", job_object(current, live))
        if current.ended:
            yield frame("done", job_object(current, live))
            return
        state = live.get(record.id)
        if state is not None and state.preview is not None:
            yield _preview(state.preview)
        while "closing" not in (pending := await watcher.next(HEARTBEAT_S)):
            if not pending:
                yield b": still here\n\n"
            if "progress" in pending:
                yield frame("progress", _progress(coordinator, record.id, pending["progress"]))
            if "preview" in pending:
                yield _preview(pending["preview"])
            if "done" in pending or "deleted" in pending:
                current = await run_in_threadpool(store.peek, record.id)
                if current is None:
                    yield frame("deleted", {"id": record.id})
                else:
                    yield frame("job", job_object(current, live))
                    yield frame("done", job_object(current, live))
                return
    finally:
        live.unwatch(record.id, watcher)


def _progress(coordinator: Coordinator, job_id: str, state: dict[str, Any]) -> dict[str, Any]:
    waiting = state["queue_position"] is not None or state["paused"]
    eta_s = coordinator.live.eta_s(job_id)
    return {
        **state,
        "id": job_id,
        "status": "queued" if waiting else "in_progress",
        "eta_s": None if eta_s is None else round(eta_s, 2),
    }


def _preview(jpeg: bytes) -> bytes:
    return frame("preview", {"jpeg": base64.b64encode(jpeg).decode()})
