"""From a POST to an accepted job: read, check, spool, admit. Shared by the async and the sync form."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from typing import Any

from anyio import to_thread
from starlette.requests import Request

from talkies.errors import InvalidRequest, OutputError
from talkies.h3.clip_plan import plan_notes
from talkies.server.errors import told_as
from talkies.server.intake.body import read_body
from talkies.server.intake.inputs import Checked, materialize
from talkies.server.intake.schema import Draft, to_draft
from talkies.server.jobs import webhook
from talkies.server.jobs.artifacts import Artifacts
from talkies.server.jobs.coordinator import Coordinator
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.view import planned_facts
from talkies.server.remix import remixed

MAX_IDEMPOTENCY_KEY_CHARS = 255


async def create_job(
    request: Request, coordinator: Coordinator, owner: str, *, is_sync: bool = False, remix_of: JobRecord | None = None
) -> tuple[JobRecord, bool]:
    """(job, created). ``remix_of``: what the body leaves out is that job's. Raises the error tree; leaves no file
    behind when it does."""
    coordinator.require_ready()  # before megabytes are uploaded to a server that cannot use them
    key = None if is_sync else _idempotency_key(request)
    body = await read_body(request, max_part_bytes=coordinator.config.max_body_bytes)
    try:
        limits = coordinator.limits
        if remix_of is not None:
            body = remixed(body, remix_of)
        names = (coordinator.model_name, *coordinator.config.model_aliases, coordinator.service.info.model_name)
        draft = to_draft(body, limits=limits, model_names=names)
        if is_sync:
            _check_sync(draft)
        # Words alone never wait behind somebody's slow URL.
        intake = request.app.state.intake if draft.sources or draft.webhook_url else None
        source_id = None if remix_of is None else remix_of.id
        return await to_thread.run_sync(_accept, coordinator, draft, owner, key, is_sync, source_id, limiter=intake)
    finally:
        await request.close()  # the parser's temporary files


def _check_sync(draft: Draft) -> None:
    """The answer is one video: what would be made and thrown away is refused."""
    if draft.webhook_url is not None:
        raise InvalidRequest("webhook_url has no use here: the answer is the video", param="webhook_url")
    if draft.request.num_outputs > 1:
        name = draft.names.get("num_outputs_per_prompt", "num_outputs_per_prompt")
        raise InvalidRequest(
            f"{name}={draft.request.num_outputs}, but the answer is one video",
            hint="use POST /v1/videos, which keeps all outputs, or ask for 1",
            param=name,
        )


def _accept(
    coordinator: Coordinator, draft: Draft, owner: str, key: str | None, is_sync: bool, remix_of: str | None
) -> tuple[JobRecord, bool]:
    artifacts, config, limits = coordinator.artifacts, coordinator.config, coordinator.limits
    folder = Artifacts.new_folder()
    created = False
    try:
        webhook.check(draft.webhook_url, config)
        with told_as(draft.names):
            checked = materialize(draft, folder=artifacts.uploads(folder), config=config, limits=limits)
        record = JobRecord(
            id=f"{'video_sync-' if is_sync else 'video_gen_'}{secrets.token_hex(16)}",
            owner=owner,
            model=coordinator.model_name,
            request=checked.request.to_dict(),
            facts=planned_facts(checked.request, checked.geometry, limits, remix_of=remix_of),
            warnings=[*draft.warnings, *plan_notes(checked.request, checked.geometry, limits), *checked.hints],
            folder=folder,
            num_outputs=checked.request.num_outputs,
            created_at=time.time(),
            fingerprint=_fingerprint(draft, checked, remix_of),
            priority=draft.priority,
            is_sync=is_sync,
            return_metrics=draft.return_metrics,
            idempotency_key=key,
            webhook_url=draft.webhook_url,
        )
        with told_as(draft.names):
            record, created = coordinator.submit(record, checked.request)
        return record, created
    except (OSError, sqlite3.OperationalError) as error:
        reason = getattr(error, "strerror", None) or error  # without the file's name
        raise OutputError(f"the job cannot be stored: {reason}", hint="is the data folder's disk full?") from error
    finally:
        if not created:
            artifacts.drop_inputs(folder)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise InvalidRequest(
            f"Idempotency-Key has {len(key)} characters, outside 1..{MAX_IDEMPOTENCY_KEY_CHARS}",
            param="Idempotency-Key",
        )
    return key


def _fingerprint(draft: Draft, checked: Checked, remix_of: str | None) -> str:
    """Equal for equal requests: files count by content, whatever their names are."""
    request: dict[str, Any] = checked.request.to_dict()
    for condition, digest in zip(request["conditions"], checked.digests, strict=True):
        condition |= {"uri": digest, "name": ""}
    plain = {"request": request, "priority": draft.priority, "webhook": draft.webhook_url, "remix_of": remix_of}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
