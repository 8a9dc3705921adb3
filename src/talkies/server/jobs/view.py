"""The job object (docs/api.md, Job object): a superset of OpenAI's, filled with what really happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from talkies.engine.port.facts import Facts
from talkies.few_steps import in_use
from talkies.h3.clip_plan import cache_of, num_forwards
from talkies.h3.geometry import Geometry, Limits
from talkies.request import VideoRequest
from talkies.server.jobs.live import Live, LiveState, percent
from talkies.server.jobs.record import JobRecord


class JobError(BaseModel):
    code: str
    message: str
    param: str | None = None
    status: int


class VideoJob(BaseModel):
    """Documented in OpenAPI; answers are built by :func:`job_object`."""

    model_config = ConfigDict(extra="forbid")

    id: str
    object: Literal["video"]
    model: str
    prompt: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    started_at: int | None
    completed_at: int | None
    expires_at: int | None
    size: str
    seconds: str
    quality: str
    remixed_from_video_id: str | None
    error: JobError | None
    media_type: Literal["video/mp4"]
    file_name: str | None
    url: str | None
    num_outputs: int
    inference_time_s: float | None
    stage_durations: dict[str, float]
    peak_memory_mb: float | None
    action: str | None
    fps: int
    num_frames: int
    duration_s: float
    task: str
    seed: int
    num_forwards: int
    num_inference_steps: int
    adapters: list[dict[str, Any]]
    skipped_fraction: float | None
    step_cache: dict[str, Any] | None
    queue_position: int | None
    stage: str | None
    step: int | None
    num_steps: int | None
    eta_s: float | None
    predicted_s: float | None
    paused: bool
    warnings: list[str]
    conditions_used: list[dict[str, Any]]
    metrics: dict[str, Any] | None


class VideoList(BaseModel):
    object: Literal["list"]
    data: list[VideoJob]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    id: str
    object: Literal["video.deleted"]
    deleted: Literal[True]


class ErrorBody(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str
    status: int


class ErrorEnvelope(BaseModel):
    error: ErrorBody


def planned_facts(request: VideoRequest, geometry: Geometry, limits: Limits, *, remix_of: str | None = None) -> Facts:
    """What the clip will be, known before the queue. The engine's facts replace these when they come."""
    adapters = in_use(request, limits.adapters)
    cache = cache_of(request, limits)
    plan = Facts.of(request, geometry, num_forwards=num_forwards(request, limits), adapters=adapters)
    plan = replace(plan, step_cache=cache.facts())
    return replace(plan, seconds=round(geometry.duration_s, 6), remix_of=remix_of)  # the engine's seconds are exact


def job_object(record: JobRecord, live: Live, states: Mapping[str, LiveState] | None = None) -> dict[str, Any]:
    """``states``: those of one moment, for a list of jobs."""
    facts, state = record.facts, (live if states is None else states).get(record.id)
    stages = {name: round(value, 4) for name, value in facts.stages_s.items()}
    spent_s = None
    if record.status == "completed" and record.started_at and record.completed_at:
        wall_s = max(0.0, record.completed_at - record.started_at)  # of jobs made by an older version
        spent_s = round(facts.took_s if facts.took_s is not None else wall_s, 3)
    status, paused, eta_s = record.status, False, None
    if not record.ended:
        eta_s = None if state is None else state.eta_s
        paused = state is not None and state.paused
        status = "queued" if paused else status
    running = state is not None and not record.ended
    done = record.status == "completed"
    return {
        "id": record.id,
        "object": "video",
        "model": record.model,
        "prompt": record.request["prompt"],
        "status": status,
        "progress": 100 if done else percent(state.fraction) if running and state else 0,
        "created_at": int(record.created_at),
        "started_at": _whole(record.started_at),
        "completed_at": _whole(record.completed_at),
        "expires_at": _whole(record.expires_at),
        "size": facts.size,
        "seconds": f"{facts.seconds:.3f}".rstrip("0").rstrip("."),
        "quality": record.request.get("quality", "lossless"),
        "remixed_from_video_id": facts.remix_of,
        "error": record.error,
        "media_type": "video/mp4",
        "file_name": f"{record.id}.mp4" if done else None,
        "url": f"{live.root_path}/v1/videos/{record.id}/content" if done else None,
        "num_outputs": record.num_outputs,
        "inference_time_s": spent_s,
        "stage_durations": stages,
        "peak_memory_mb": facts.peak_memory_mb,
        "action": None,
        "fps": facts.fps,
        "num_frames": facts.frames,
        "duration_s": facts.seconds,
        "task": facts.task,
        "seed": facts.seed,
        "num_forwards": facts.num_forwards,
        "num_inference_steps": facts.num_forwards + 1,
        "adapters": list(facts.adapters),
        "skipped_fraction": facts.skipped_fraction,
        "step_cache": None if facts.step_cache is None else dict(facts.step_cache),
        "queue_position": state.queue_position if running and state else None,
        "stage": state.stage if running and state else None,
        "step": state.step if running and state else None,
        "num_steps": state.num_steps if running and state else None,
        "eta_s": None if eta_s is None else round(eta_s, 2),
        "predicted_s": None if record.predicted_s is None else round(record.predicted_s, 2),
        "paused": paused,
        "warnings": list(dict.fromkeys([*record.warnings, *facts.warnings])),
        "conditions_used": list(facts.conditions_used),
        "metrics": _metrics(record, stages) if record.return_metrics else None,
    }


def event_object(record: JobRecord, live: Live) -> dict[str, Any]:
    """What a webhook carries: OpenAI's event, whose ``data`` is the whole job."""
    return {
        "id": f"evt_{record.id}",
        "object": "event",
        "created_at": int(record.completed_at or record.created_at),
        "type": f"video.{record.status}",
        "data": job_object(record, live),
    }


def poll_after_ms(job: dict[str, Any]) -> int:
    """What the OpenAI client waits between two polls: a tenth of what is left, 0.1 to 2 s."""
    if job["status"] in ("completed", "failed"):
        return 100
    return round(min(2.0, max(0.1, (job["eta_s"] or 2.0) / 10)) * 1000)


def _metrics(record: JobRecord, stages: dict[str, float]) -> dict[str, Any]:
    waited_s = None if record.started_at is None else round(max(0.0, record.started_at - record.created_at), 3)
    known = record.facts.to_dict()
    if record.facts.queue_wait_s is not None:
        waited_s = record.facts.queue_wait_s
    keys = ("rows", "skipped_fraction", "peak_memory_mb")
    return {"queue_wait_s": waited_s, "stages_s": stages, **{k: known[k] for k in keys if k in known}}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
