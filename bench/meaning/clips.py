"""The clips of bench/meaning: what one is to show, how it is made, and what the judge sees in it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.meaning import references
from bench.meaning.cases import Case, specs_of
from bench.meaning.references import ReferenceCase
from training import world
from training.judge.verdict import Verdict, judge

DEFAULT_CANVAS = "16:9"
PLAIN = "plain"  # the part of the prompts in plain English


@dataclass(frozen=True, slots=True)
class Job:
    """One clip to make. `part` is a column's name; `ends` are the keyframes to give, `asked` the references."""

    part: str
    case: Case
    num_frames: int
    canvas: str = DEFAULT_CANVAS
    seed: int = 0
    ends: tuple[str, ...] = ()
    asked: ReferenceCase | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`psnr_db` of the keyframe at each end, made and at best."""

    job: Job
    verdict: Verdict
    seconds: float
    psnr_db: dict[str, float] = field(default_factory=dict)


class Maker:
    """One engine and one pair of VAEs; lives in a worker process."""

    def __init__(self, model: str | None, device: str, threads: int) -> None:
        from talkies import Engine

        torch.set_num_threads(threads)
        self.engine = Engine.open(model, device=device, threads=threads)
        self.model, self.device = model, device
        self._codecs: Any = None

    def make(self, job: Job) -> Outcome:
        start = time.perf_counter()
        if job.part == "ceiling":
            frames, wave = self.round_trip(*render(job))
            return Outcome(job, judge(frames, wave), time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as folder:
            clip = self.engine.generate(request_of(job, Path(folder)))
        seconds = time.perf_counter() - start
        return Outcome(job, judge(clip.frames, clip.audio), seconds, self.keyframe_psnr(job, clip.frames))

    def round_trip(self, frames: np.ndarray, wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A clip encoded and decoded by the checkpoint's own VAEs."""
        if self._codecs is None:
            self._codecs = load_codecs(self.model, self.device)
        video, audio = self._codecs
        pictures = torch.cat([chunk.cpu() for chunk in video.decode(video.encode(torch.from_numpy(frames)))])
        return pictures.numpy(), audio.decode(audio.encode(torch.from_numpy(wave))).numpy()

    def keyframe_psnr(self, job: Job, made: np.ndarray) -> dict[str, float]:
        if not job.ends:
            return {}
        truth, wave = render(job)
        best, _ = self.round_trip(truth, wave)
        out = {}
        for end in job.ends:
            index = 0 if end == "first" else -1
            out[end] = psnr_db(made[index], truth[index])
            out[f"{end} at best"] = psnr_db(best[index], truth[index])
        return out


def load_codecs(model: str | None, device: str) -> tuple[Any, Any]:
    from talkies.codecs.audio.vae import AudioVAE
    from talkies.codecs.video.vae import VideoVAE
    from talkies.engine.config import embedded_folder

    folder = embedded_folder() if model is None else Path(model)
    return VideoVAE.load(folder / "vae", device=device), AudioVAE.load(folder / "audio_vae", device=device)


def render(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """What the world makes of a case: frames uint8 [F, H, W, 3] and wave float32 [2, N]."""
    specs = specs_of(job.case.expected, job.canvas)
    rendered = world.render(specs, job.num_frames)
    wave = world.audio_for(specs, rendered.motion, job.num_frames)[0]
    return references.frames_of(rendered), wave.numpy()


def request_of(job: Job, folder: Path) -> Any:
    from PIL import Image

    from talkies import Condition, Target, VideoRequest

    conditions = []
    if job.ends:
        truth, _ = render(job)
        for end in job.ends:
            path = folder / f"{end}.png"
            Image.fromarray(truth[0 if end == "first" else -1]).save(path)
            conditions.append(Condition(kind="image", uri=str(path), role=end))  # type: ignore[arg-type]
    for i, reference in enumerate(job.asked.references if job.asked else ()):
        path = references.write(reference, folder / f"reference{i}")
        conditions.append(Condition(kind=reference.kind, uri=str(path)))  # type: ignore[arg-type]
    target = Target(num_frames=job.num_frames, aspect=job.canvas)
    return VideoRequest(prompt=job.case.prompt, target=target, conditions=tuple(conditions), seed=job.seed)


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a.astype(np.float64) - b) ** 2).mean())
    return 10 * float(np.log10(255**2 / max(error, 1e-3)))


def run_jobs(
    jobs: Sequence[Job], model: str | None = None, device: str = "cpu", workers: int = 2, quiet: bool = True
) -> list[Outcome]:
    """All outcomes in the order of the jobs. Each worker has one thread: faster on a CPU than threads that wait."""
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].num_frames)
    outcomes: dict[int, Outcome] = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), _open, (model, device, 1)) as pool:
        for i, outcome in zip(order, pool.map(_make, [jobs[i] for i in order]), strict=True):
            outcomes[i] = outcome
            if not quiet and len(outcomes) % 20 == 0:
                print(f"{len(outcomes)} of {len(jobs)} clips", file=sys.stderr, flush=True)
    return [outcomes[i] for i in range(len(jobs))]


def _open(model: str | None, device: str, threads: int) -> None:
    global _maker
    _maker = Maker(model, device, threads)


def _make(job: Job) -> Outcome:
    return _maker.make(job)
