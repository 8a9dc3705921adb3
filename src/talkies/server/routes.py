"""The endpoints (docs/api.md, Endpoints). Each handler checks the key, asks the coordinator, and shapes the answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response, StreamingResponse

from talkies.errors import NotReady
from talkies.few_steps import AdapterFacts
from talkies.files.paths import public_name
from talkies.h3.geometry import canvas_of_aspect
from talkies.request import LOCK_KINDS
from talkies.server import events, sync
from talkies.server.config import PIPELINE_CLASS
from talkies.server.create import create_job
from talkies.server.edge.auth import Keys
from talkies.server.edge.download import MEDIA_TYPES, Download
from talkies.server.errors import Json, NotFound, NotProcessable
from talkies.server.jobs.coordinator import Coordinator
from talkies.server.jobs.record import JobRecord
from talkies.server.jobs.view import VideoDeleted, VideoJob, VideoList, job_object, poll_after_ms
from talkies.server.openapi import CREATE_BODY, CREATE_LINKS, responses

MAX_PAGE = 100
DEFAULT_PAGE = 20
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # SGLang's words
VARIANTS = "^(video|thumbnail|spritesheet|[0-9])$"  # a digit is an output's number

router = APIRouter()


def _coordinator(request: Request) -> Coordinator:
    return request.app.state.coordinator


def _owner(request: Request) -> str:
    keys: Keys = request.app.state.keys
    return keys.owner(request)


def _find(request: Request, video_id: str) -> JobRecord:
    """Blocks: for handlers that run in a thread. Raises ``Unauthorized``, ``NotFound``, ``Gone``."""
    return _coordinator(request).store.get(video_id, _owner(request))


def _job_response(request: Request, record: JobRecord, headers: dict[str, str] | None = None) -> Json:
    job = job_object(record, _coordinator(request).live)
    extra = {"openai-poll-after-ms": str(poll_after_ms(job)), **(headers or {})}
    if record.error is not None:
        # vLLM clients read a failure from the status line; OpenAI's need 200 and the body (docs/api.md, Failed jobs).
        extra["X-Error-Status"] = str(record.error.get("status", 500))
    return Json(job, headers=extra)


@router.post(
    "/v1/videos",
    response_model=VideoJob,
    openapi_extra={"requestBody": CREATE_BODY},
    responses=responses(400, 401, 403, 409, 413, 415, 429, 503, links=CREATE_LINKS),
)
async def create_video(request: Request) -> Response:
    record, created = await create_job(request, _coordinator(request), _owner(request))
    headers = {} if created else {"Idempotent-Replayed": "true"}
    return await run_in_threadpool(_job_response, request, record, headers)


@router.post(
    "/v1/videos/sync",
    response_class=FileResponse,
    openapi_extra={"requestBody": CREATE_BODY},
    responses={
        200: {"content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}},
        **responses(400, 401, 403, 413, 415, 422, 429, 500, 503, 504),
    },
)
async def create_video_sync(request: Request) -> Response:
    return await sync.run(request, _coordinator(request), _owner(request))


@router.get("/v1/videos", response_model=VideoList, responses=responses(400, 401))
def list_videos(
    request: Request,
    after: str | None = Query(None, max_length=200),
    limit: int = Query(DEFAULT_PAGE, ge=0, le=MAX_PAGE),
    order: str = Query("desc", pattern="^(asc|desc)$"),
) -> Response:
    coordinator = _coordinator(request)
    records, has_more = coordinator.store.page(_owner(request), after=after, limit=limit, order=order)
    states = coordinator.live.all()
    data = [job_object(record, coordinator.live, states) for record in records]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return Json({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more})


@router.get("/v1/videos/{video_id}", response_model=VideoJob, responses=responses(401, 404, 410))
def get_video(request: Request, video_id: str) -> Response:
    return _job_response(request, _find(request, video_id))


@router.delete("/v1/videos/{video_id}", response_model=VideoDeleted, responses=responses(401, 403, 404, 410))
def delete_video(request: Request, video_id: str) -> Response:
    record = _find(request, video_id)
    _coordinator(request).delete(record)
    return Json({"id": record.id, "object": "video.deleted", "deleted": True})


@router.post("/v1/videos/{video_id}/cancel", response_model=VideoJob, responses=responses(401, 403, 404, 409, 410))
def cancel_video(request: Request, video_id: str) -> Response:
    """Ends the job and keeps its record: ``failed``, with the error code ``cancelled``."""
    record = _find(request, video_id)
    return _job_response(request, _coordinator(request).cancel(record))


@router.post(
    "/v1/videos/{video_id}/remix",
    response_model=VideoJob,
    openapi_extra={"requestBody": CREATE_BODY},
    responses=responses(400, 401, 403, 404, 409, 410, 413, 415, 429, 503),
)
async def remix_video(request: Request, video_id: str) -> Response:
    """The same request with another prompt, and whatever else the body names; the seed stays unless it is given."""
    source = await run_in_threadpool(_find, request, video_id)
    record, created = await create_job(request, _coordinator(request), source.owner, remix_of=source)
    headers = {} if created else {"Idempotent-Replayed": "true"}
    return await run_in_threadpool(_job_response, request, record, headers)


@router.head("/v1/videos/{video_id}/content", include_in_schema=False)
@router.get(
    "/v1/videos/{video_id}/content",
    response_class=FileResponse,
    responses={
        200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()}},
        **responses(400, 401, 404, 410, 422),
    },
)
def get_content(request: Request, video_id: str, variant: str | None = Query(None, pattern=VARIANTS)) -> Response:
    record = _find(request, video_id)
    if record.status == "failed":
        why = (record.error or {}).get("message", "unknown")
        raise NotProcessable(f"Video generation failed. Check job status: {why}", param="video_id")
    if record.status != "completed":
        raise NotFound("Generation is still in-progress", hint="poll GET /v1/videos/{id}", param="video_id")
    path = _coordinator(request).artifacts.find(record, variant)
    name = f"{record.id}{path.suffix}" if path.stem == "0" or path.suffix != ".mp4" else f"{record.id}-{path.name}"
    return Download(path, name=name)


@router.get(
    "/v1/videos/{video_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": events.SCHEMA}}},
        **responses(401, 404, 410),
    },
)
async def watch_video(request: Request, video_id: str) -> Response:
    record = await run_in_threadpool(_find, request, video_id)
    source = events.stream(_coordinator(request), record)
    return StreamingResponse(source, media_type="text/event-stream", headers=events.HEADERS)


@router.get("/v1/models", response_model=dict[str, Any], responses=responses(401))
def list_models(request: Request) -> Response:
    _owner(request)
    return Json({"object": "list", "data": [_model(request, name) for name in _names(request)]})


@router.get("/v1/models/{name:path}", response_model=dict[str, Any], responses=responses(401, 404))
def get_model(request: Request, name: str) -> Response:
    _owner(request)
    names = _names(request)
    if name not in names:
        raise NotFound(f"this server serves {names[0]!r}", hint="see GET /v1/models", param="model")
    return Json(_model(request, name))


def _names(request: Request) -> tuple[str, ...]:
    coordinator = _coordinator(request)
    return coordinator.model_name, *coordinator.config.model_aliases


def _model(request: Request, name: str) -> dict[str, Any]:
    coordinator = _coordinator(request)
    info = coordinator.service.info
    return {
        "id": name,
        "object": "model",
        "created": request.app.state.created_at,
        "owned_by": "talkies",
        "root": public_name(info.model_name),
        "parent": None,
        "permission": [],
        "limits": _limits(coordinator),
    }


def _limits(coordinator: Coordinator) -> dict[str, Any]:
    """What the page and careful clients need to ask for legal values."""
    limits = coordinator.limits
    return {
        "tasks": list(limits.tasks),
        "fps": limits.fps,
        "min_seconds": limits.min_seconds,
        "max_seconds": limits.max_seconds,
        "canvas_short_edge": limits.canvas_short_edge,
        "canvas_multiple": limits.canvas_multiple,
        "aspect_ratios": list(limits.named_ratios),
        "default_aspect": limits.default_aspect,
        "canvases": {
            name: "{}x{}".format(*canvas_of_aspect(w / h, limits)) for name, (w, h) in limits.named_ratios.items()
        },
        "default_num_frames": limits.default_num_frames,
        "default_num_inference_steps": limits.default_num_sigmas,
        "max_prompt_chars": limits.max_prompt_chars,
        "knows": limits.card.knows or None,
        "locks": {role: "trained" if role in limits.card.locks else "training-free" for role in LOCK_KINDS},
        "adapters": [_adapter(facts) for facts in limits.adapters],
    }


def _adapter(facts: AdapterFacts) -> dict[str, Any]:
    """``strength``: of requests that name no adapters. The others are null where it takes any."""
    ladder = facts.ladder
    return {
        "name": facts.name,
        "strength": facts.strength,
        "sha256": facts.sha256,
        "tasks": list(facts.tasks),
        "num_forwards": None if ladder is None else ladder.num_forwards,
        "flow_shift": None if ladder is None else ladder.video_shift,
        "audio_flow_shift": None if ladder is None else ladder.audio_shift,
    }


@router.get("/models", response_model=dict[str, Any], responses=responses(401))
def model_info(request: Request) -> Response:
    """SGLang's summary of what is loaded."""
    _owner(request)
    coordinator = _coordinator(request)
    info = coordinator.service.info
    return Json(
        {
            "model_path": public_name(info.model_name),
            "model_hash": info.model_hash,
            "task_type": list(coordinator.limits.tasks),
            "pipeline_name": "minimax_h3",
            "pipeline_class": PIPELINE_CLASS,
            "num_gpus": info.num_devices,  # processes, on a CPU
            "dit_precision": _PRECISIONS.get(info.dtype, info.dtype),
            "vae_precision": _PRECISIONS.get(info.video_dtype, info.video_dtype),
            "device": info.device,
            "attention": info.attention,
            "policy": info.policy,
        }
    )


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=dict[str, Any], responses=responses(503))
def health(request: Request) -> Response:
    """200 when a POST would be served; 503 while loading and when the engine is dead."""
    service = _coordinator(request).service
    state, stage = service.state, service.loading_stage
    if state != "ready":
        what = f"engine is {state}: {stage}" if stage else f"engine is {state}"
        raise NotReady(what, hint="wait" if state == "loading" else "restart the server", param="engine")
    return Json({"status": state})


@router.get("/version", response_model=dict[str, str])
def version() -> Response:
    from talkies import __version__

    return Json({"version": __version__})


@router.api_route("/ping", methods=["GET", "HEAD", "POST"], include_in_schema=False)
def ping() -> Response:
    """Alive, which is less than ready."""
    return Json({"status": "ok"})


@router.get("/load", response_model=dict[str, int])
def load(request: Request) -> Response:
    counts = _coordinator(request).store.counts()
    running, waiting = counts.get("in_progress", 0), counts.get("queued", 0)
    return Json({"server_load": running + waiting, "running": running, "waiting": waiting})


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> Response:
    coordinator = _coordinator(request)
    if not coordinator.config.serve_metrics:
        raise NotFound("metrics are turned off", hint="start without --disable-log-stats", param="path")
    return Response(coordinator.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
