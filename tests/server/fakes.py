"""An EngineService without a model: same events, a real MP4, steps as long as the test likes.

The prompt chooses the fate: a word ``fail`` fails the job, ``oom`` runs out of memory, ``slow`` waits at every step
until it is cancelled or :attr:`FakeService.release` is set, ``lost`` finishes without a file.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from talkies.capacity.demand import Demand, demand_of
from talkies.engine.port.facts import Facts
from talkies.engine.port.service import Job, JobEvent, OnEvent, OnOrder, ServiceInfo
from talkies.errors import InvalidRequest, NotReady, TalkiesError
from talkies.few_steps import AdapterFacts, Ladder
from talkies.h3.clip_plan import num_forwards, plan
from talkies.h3.geometry import Limits
from talkies.request import VideoRequest

# The embedded checkpoint's numbers, so that requests legal for it are legal here.
FAST = Ladder(num_forwards=4, base=(0.999, 0.749, 0.5, 0.25, 0.0), video_shift=12.0, audio_shift=3.0)
ADAPTERS = (
    AdapterFacts(name="film", sha256="1" * 64, strength=0.0, tasks=("t2va", "fl2va", "ref2va")),
    AdapterFacts(name="fast", sha256="2" * 64, strength=0.0, tasks=("t2va",), ladder=FAST),
)
LIMITS = Limits(
    adapters=ADAPTERS,
    spatial_factor=8,
    canvas_short_edge=64,
    canvas_max_pixels=64 * 144,
    min_seconds=0.9,
    max_seconds=6.0,
    max_frames=158,
    default_num_frames=56,
    default_num_frames_ref2va=56,
    default_num_sigmas=20,
    reference_image_short_edge=64,
    tasks=("t2va", "fl2va", "ref2va"),
)
NUM_STEPS = 5


@functools.cache
def mp4_bytes(width: int = 112, height: int = 64, num_frames: int = 22) -> bytes:
    from tempfile import TemporaryDirectory

    from talkies.media.write.mp4 import write_mp4

    t = np.arange(num_frames * 32_000 // 24, dtype=np.float32) / 32_000
    wave = np.tile((0.3 * np.sin(2 * np.pi * 440 * t)).astype(np.float32), (2, 1))
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    for i, frame in enumerate(frames):
        frame[:, : 4 * (i + 1) % width] = (200, 60, 30)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        write_mp4(path, frames, wave)
        return path.read_bytes()


@functools.cache
def jpeg_bytes() -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (28, 16), (90, 120, 40)).save(out, "JPEG")
    return out.getvalue()


def _aspect(request: VideoRequest) -> float | None:
    """Of the first keyframe."""
    from PIL import Image

    if not request.keyframes:
        return None
    with Image.open(request.keyframes[0].uri) as image:
        return image.width / image.height


class FakeService:
    """One job at a time, in order. ``runs`` counts how often each job was begun."""

    def __init__(self, *, step_s: float = 0.002, state: str = "ready", num_steps: int = NUM_STEPS) -> None:
        self.info = ServiceInfo(
            model_name="h3-tiny",
            model_hash="0" * 12,
            limits=LIMITS,
            device="cpu",
            attention="sdpa",
            policy="fifo",
            dtype="bfloat16",
            video_dtype="float16",
        )
        self.state: Literal["loading", "ready", "dead"] = state  # type: ignore[assignment]
        self.loading_stage: str | None = None
        self.fatal: TalkiesError | None = None
        self.step_s, self.num_steps = step_s, num_steps
        self.release = threading.Event()
        self.runs: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._cancelled: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, on_event: OnEvent, on_order: OnOrder | None = None) -> None:
        self._on_event, self.on_order = on_event, on_order
        self._thread.start()

    def submit(self, job: Job) -> None:
        if self.state == "dead":
            raise NotReady("dead")
        self.jobs[job.id] = job
        self._on_event(JobEvent(job_id=job.id, kind="queued"))
        self._queue.put(job)

    def cancel(self, job_id: str) -> None:
        self._cancelled.add(job_id)

    def demand_of(self, request: VideoRequest) -> Demand:
        return demand_of(request, self.info.limits)

    def predict_seconds(self, demand: Demand) -> float | None:
        return self.step_s * self.num_steps

    def check_fits(self, request: VideoRequest, demand: Demand) -> None:
        if "huge" in request.prompt.split():
            raise InvalidRequest("num_frames=158: this clip needs about 9 GiB", hint="use less", param="num_frames")

    def metrics(self) -> dict[str, float]:
        return {"steps_total": float(sum(self.steps.values()))}

    def close(self, *, timeout_s: float = 10.0) -> None:
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._closing.is_set():
            self._on_event(self._make(job))

    def _make(self, job: Job) -> JobEvent:
        if job.id in self._cancelled:
            return JobEvent(job_id=job.id, kind="cancelled")
        words = job.request.prompt.split()
        self.runs[job.id] = self.runs.get(job.id, 0) + 1
        g = plan(job.request, self.info.limits, auto_aspect=_aspect(job.request))
        facts = replace(Facts.of(job.request, g, num_forwards=num_forwards(job.request, self.info.limits)), rows=9)
        marker = job.resume_dir / "step" if job.resume_dir else None
        first = int(marker.read_text()) if marker and marker.exists() else 0
        kind: Literal["resumed", "started"] = "resumed" if first else "started"
        self._on_event(JobEvent(job_id=job.id, kind=kind, stage="encode", fraction=0.01, facts=facts))
        for step in range(first + 1, self.num_steps + 1):
            while "slow" in words and not self.release.is_set() and job.id not in self._cancelled:
                if self._closing.wait(0.01):
                    break
            if self._closing.wait(self.step_s):
                return JobEvent(job_id=job.id, kind="failed", error={"code": "worker_died", "message": "closed"})
            if job.id in self._cancelled:
                return JobEvent(job_id=job.id, kind="cancelled")
            self.steps[job.id] = step
            if marker:
                marker.with_suffix(".part").write_text(str(step))
                marker.with_suffix(".part").replace(marker)
            done = {"stage": "denoise", "step": step, "num_steps": self.num_steps}
            left_s = (self.num_steps - step) * self.step_s
            fraction = step / (self.num_steps + 1)
            self._on_event(JobEvent(job_id=job.id, kind="progress", fraction=fraction, eta_s=left_s, **done))
            self._on_event(JobEvent(job_id=job.id, kind="preview", jpeg=jpeg_bytes()))
        if "fail" in words or "oom" in words:
            code = "out_of_memory" if "oom" in words else "non_finite"
            error = {"code": code, "message": f"in {job.outputs[0]}", "param": None, "status": 500}
            return JobEvent(job_id=job.id, kind="failed", error=error)
        if "lost" not in words:
            for path in job.outputs:
                path.write_bytes(mp4_bytes())
        stages = {"encode": 0.01, "denoise": 0.2, "decode": 0.05}
        return JobEvent(job_id=job.id, kind="finished", fraction=1.0, facts=replace(facts, stages_s=stages))


class EndedBefore(FakeService):
    """``before`` is called with a job's id when the server hands the job over: whoever ends it there ends a job that
    the engine was not given yet, and that it therefore cannot cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], None] = lambda job_id: None

    def submit(self, job: Job) -> None:
        self.before(job.id)
        super().submit(job)

    def cancel(self, job_id: str) -> None:
        if job_id in self.jobs:
            super().cancel(job_id)
