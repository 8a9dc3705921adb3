"""The port between whoever serves jobs and whatever runs them. ``Executor`` implements it over worker processes;
a fake of a few lines tests everything above it without a model.

A *job* is one accepted request. The service owns it from ``submit`` until its last event, which always comes:
``finished``, ``failed`` or ``cancelled``, also when the worker dies in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from talkies.capacity.demand import Demand
from talkies.engine.port.facts import Facts
from talkies.errors import TalkiesError
from talkies.h3.geometry import Limits
from talkies.request import VideoRequest

EventKind = Literal["queued", "started", "progress", "preview", "resumed", "finished", "failed", "cancelled"]
RESTARTING = "restarting"  # the stage of all jobs while a worker that died is replaced
TERMINAL: frozenset[str] = frozenset({"finished", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a service needs to run one accepted request. ``outputs`` are the MP4 files to write, one per output;
    ``resume_dir`` is where latents and step index are kept so that a killed run can go on."""

    id: str
    request: VideoRequest
    outputs: tuple[Path, ...]
    resume_dir: Path | None = None
    priority: int = 0  # larger runs earlier
    media_root: Path | None = None
    demand: Demand | None = None  # as counted at submit; None: the service counts it, once


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvent:
    """Something happened to ``job_id``. ``fraction`` (0..1) and ``eta_s`` (what is left of it alone, whoever else is
    ahead) are filled where known; ``queued`` means that it does not run now; ``jpeg`` comes only with ``preview``,
    ``error`` = {code, message, param, status} only with ``failed``; ``facts`` of the whole job with ``started`` or
    ``resumed``, and complete with ``finished``."""

    job_id: str
    kind: EventKind
    stage: str | None = None
    step: int | None = None
    num_steps: int | None = None
    fraction: float | None = None
    eta_s: float | None = None
    jpeg: bytes | None = None
    error: dict[str, Any] | None = None
    facts: Facts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOrder:
    """All jobs that have not ended, begun or not, in the order in which they will run as things stand. The first
    ``together`` of them share their forwards. ``ready_in_s``: until a worker can go on; None while nobody knows."""

    job_ids: tuple[str, ...]
    together: int = 1
    ready_in_s: float | None = 0.0


OnEvent: TypeAlias = Callable[[JobEvent], None]
OnOrder: TypeAlias = Callable[[QueueOrder], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceInfo:
    """What the service can do, known without a loaded weight."""

    model_name: str
    model_hash: str
    limits: Limits
    device: str
    attention: str
    policy: str
    text_attention: str = "sdpa"  # of the text encoder
    dtype: str = "float32"  # of the DiT's blocks and the text encoder
    video_dtype: str = "float32"  # of the video decoder's linears
    num_devices: int = 1  # that share the DiT
    tokenizer: Path | None = None  # its folder


class EngineService(Protocol):
    """Thread-safe. ``on_event`` given to :meth:`start` is called from the service's own thread; ``on_order`` whenever
    the order has changed, from that or from a thread that submits, never from two at once."""

    @property
    def info(self) -> ServiceInfo: ...

    def start(self, on_event: OnEvent, on_order: OnOrder | None = None) -> None:
        """Begin loading; returns at once."""
        ...

    @property
    def state(self) -> Literal["loading", "ready", "dead"]: ...

    @property
    def fatal(self) -> TalkiesError | None:
        """Why it is dead, if it is and knows."""
        ...

    @property
    def loading_stage(self) -> str | None:
        """What is being loaded, while it is."""
        ...

    def submit(self, job: Job) -> None:
        """Raises ``NotReady`` when dead. Never blocks on the model."""
        ...

    def cancel(self, job_id: str) -> None:
        """Stops the job at the next step boundary; its last event is ``cancelled`` (or an earlier end). Idempotent."""
        ...

    def demand_of(self, request: VideoRequest) -> Demand:
        """What ``request`` asks for, for the other calls and the job; reads the headers of its files.

        Raises ``InvalidRequest`` where the checkpoint cannot make it."""
        ...

    def predict_seconds(self, demand: Demand) -> float | None:
        """From measured step times; None before the first measurement."""
        ...

    def check_fits(self, request: VideoRequest, demand: Demand) -> None:
        """Raises ``InvalidRequest`` for a job that would not fit into memory even alone."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def close(self, *, timeout_s: float = 10.0) -> None: ...
