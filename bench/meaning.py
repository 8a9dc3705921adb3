"""Does a clip show and sound like its prompt? `python -m bench.meaning [--quick]`

Makes clips with `talkies.Engine` from the fixed prompts of `meaning_cases` and lets `training.judge` look at them:

    text       24 prompts x 4 seeds x 22, 56 and 124 frames on the default canvas
    canvases   8 prompts on each of the other five canvases, 56 frames
    keys       6 pictures rendered by the world, as first, last and both; what the picture shows is expected too
    references 16 requests of `meaning_references` x 2 seeds at 56 frames: pictures, sounds and clips to follow
    ceiling    the same clips rendered by the world and pushed through the checkpoint's VAEs: no model can do better

A keyframe is also compared with the decoded frame at its end of the clip (PSNR); its ceiling is what the VAE leaves of
the same frame in the rendered clip. Prints a table, writes `bench/results/meaning-<device>.json` (not with --quick
unless --out is given) and exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import meaning_references
from bench.meaning_cases import CASES, KEYFRAME_CASES, QUICK, Case, specs_of
from bench.meaning_references import REFERENCE_CASES, ReferenceCase
from bench.report import RESULTS, commit, device_name
from training import world
from training.judge import ATTRIBUTES, Scores, Verdict, judge, score, wanted

FRAME_COUNTS = (22, 56, 124)
DEFAULT_CANVAS = "16:9"
SEEDS = (0, 1, 2, 3)
ENDS = {"first": ("first",), "last": ("last",), "both": ("first", "last")}
THRESHOLDS = {"color": 0.92, "motion": 0.92, "sound": 0.92, "shape": 0.85, "tempo": 0.90, "offset": 0.95}
# The share of the reference clips that take on what a reference alone decides.
FOLLOWED = {"color": 0.80, "shape": 0.80, "sound": 0.80, "motion": 0.80}
# Judged right of the rendered clips after the VAEs: below it, the table says more about the codecs than the model.
CEILING = 0.98


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


def jobs_of(quick: bool) -> list[Job]:
    cases, frame_counts, seeds = (QUICK, (22, 56), SEEDS[:1]) if quick else (CASES, FRAME_COUNTS, SEEDS)
    others = [] if quick else [name for name in world.CANVASES if name != DEFAULT_CANVAS]
    keyframe_cases = KEYFRAME_CASES[:1] if quick else KEYFRAME_CASES
    jobs = [Job(f"{n} frames", c, n, seed=seed) for c in cases for n in frame_counts for seed in seeds]
    jobs += [Job("canvases", c, 56, canvas=name) for name in others for c in QUICK]
    jobs += [Job(f"{name} key", c, 56, ends=ends) for c in keyframe_cases for name, ends in ENDS.items()]
    chosen, seeds = (REFERENCE_CASES[::4], seeds) if quick else (REFERENCE_CASES, seeds[:2])
    jobs += [Job("references", a.whole, 56, seed=seed, asked=a) for a in chosen for seed in seeds]
    return jobs + [Job("ceiling", c, n) for c in cases for n in frame_counts]


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
    from talkies.codecs.audio import AudioVAE
    from talkies.codecs.video import VideoVAE
    from talkies.engine.config import embedded_folder

    folder = embedded_folder() if model is None else Path(model)
    return VideoVAE.load(folder / "vae", device=device), AudioVAE.load(folder / "audio_vae", device=device)


def render(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """What the world makes of a case: frames uint8 [F, H, W, 3] and wave float32 [2, N]."""
    specs = specs_of(job.case.expected, job.canvas)
    rendered = world.render(specs, job.num_frames)
    wave = world.audio_for(specs, rendered.motion, job.num_frames)[0]
    return meaning_references.frames_of(rendered), wave.numpy()


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
        path = meaning_references.write(reference, folder / f"reference{i}")
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


def scores_of(outcomes: Iterable[Outcome]) -> Scores:
    chosen = list(outcomes)
    return score([o.verdict for o in chosen], [o.job.case.expected for o in chosen])


def followed_of(outcomes: Iterable[Outcome]) -> Scores:
    """The reference clips, judged by what their references alone decide."""
    chosen = [(o.verdict, o.job.asked.decided) for o in outcomes if o.job.asked]
    return score([verdict for verdict, _ in chosen], [decided for _, decided in chosen])


def table(outcomes: Sequence[Outcome]) -> str:
    """Rates in per cent by part, with the text clips together and the ceiling last."""
    parts = list(dict.fromkeys(o.job.part for o in outcomes if o.job.part != "ceiling"))
    columns = {"text": [o for o in outcomes if _is_text(o)]}
    columns |= {part: [o for o in outcomes if o.job.part == part] for part in parts}
    columns["VAE round trip"] = [o for o in outcomes if o.job.part == "ceiling"]
    scores = {name: scores_of(chosen) for name, chosen in columns.items()}
    rows = [["", *columns], ["clips", *(str(len(chosen)) for chosen in columns.values())]]
    for name in (*ATTRIBUTES, "all", "events", "offset"):
        rates = [s.rates[name] for s in scores.values()]
        rows.append([name, *(f"{100 * r.share:.1f}" if r.total else "-" for r in rates)])
    rows.append(["offset median ms", *(f"{s.offset_median_ms:.1f}" for s in scores.values())])
    rows.append(["offset p90 ms", *(f"{s.offset_p90_ms:.1f}" for s in scores.values())])
    rows.append(["pan error", *(f"{s.pan_error:.3f}" for s in scores.values())])
    for end in ("first", "last"):
        for key in (end, f"{end} at best"):
            cells = [[o.psnr_db[key] for o in chosen if key in o.psnr_db] for chosen in columns.values()]
            if any(cells):
                rows.append([f"{key} PSNR dB", *(f"{np.mean(c):.1f}" if c else "-" for c in cells)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def failures(outcomes: Sequence[Outcome]) -> str:
    """One line for each clip that is wrong: what was asked for and what was seen."""
    lines = []
    for o in outcomes:
        due = wanted(o.verdict, o.job.case.expected)
        wrong = [f"{k} {v} -> {getattr(o.verdict, k)}" for k, v in due.items() if getattr(o.verdict, k) != v]
        if wrong:
            j = o.job
            lines.append(
                f"{j.part}, {j.canvas}, {j.num_frames} frames, seed {j.seed}: {'; '.join(wrong)} | {j.case.prompt}"
            )
    return "\n".join(lines)


def report(outcomes: Sequence[Outcome], device: str, quick: bool) -> dict[str, Any]:
    """The result file."""
    text = scores_of(o for o in outcomes if _is_text(o))
    ceiling = scores_of(o for o in outcomes if o.job.part == "ceiling")
    metrics: dict[str, float] = {f"{name}_share": rate.share for name, rate in text.rates.items() if rate.total}
    metrics |= {f"ceiling_{name}_share": rate.share for name, rate in ceiling.rates.items() if rate.total}
    metrics |= {"offset_median_ms": text.offset_median_ms, "offset_p90_ms": text.offset_p90_ms}
    metrics |= {"pan_error": text.pan_error}
    for part in dict.fromkeys(o.job.part for o in outcomes if o.job.part != "ceiling"):
        chosen = [o for o in outcomes if o.job.part == part]
        label = part.replace(" ", "_")
        metrics |= {f"{label}_{name}_share": rate.share for name, rate in scores_of(chosen).rates.items() if rate.total}
        metrics[f"{label}_seconds_median"] = float(np.median([o.seconds for o in chosen]))
        for key in dict.fromkeys(key for o in chosen for key in o.psnr_db):
            metrics[f"{label}_{key.replace(' ', '_')}_psnr_db"] = float(
                np.mean([o.psnr_db[key] for o in chosen if key in o.psnr_db])
            )
    checks = {}
    followed = followed_of(outcomes)
    for name, share in FOLLOWED.items():
        if followed.rates[name].total:
            metrics[f"followed_{name}_share"] = followed.rates[name].share
            checks[f"followed_{name}>={share:.2f}"] = followed.rates[name].share >= share
    checks |= {f"{name}>={share:.2f}": text.rates[name].share >= share for name, share in THRESHOLDS.items()}
    if ceiling.rates["all"].total:
        checks |= {f"ceiling_{name}>={CEILING:.2f}": ceiling.rates[name].share >= CEILING for name in THRESHOLDS}
    return {
        "bench": "meaning",
        "device": device_name(device),
        "torch": torch.__version__,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "shape": {
            "canvas": DEFAULT_CANVAS,
            "frames": sorted({o.job.num_frames for o in outcomes if _is_text(o)}),
            "prompts": len({o.job.case.prompt for o in outcomes if _is_text(o)}),
            "seeds": len({o.job.seed for o in outcomes if _is_text(o)}),
            "clips": len(outcomes),
            "quick": quick,
        },
        "metrics": {name: round(value, 4) for name, value in metrics.items()},
        "peer": {},
        "checks": {name: bool(passed) for name, passed in checks.items()},
    }


def _is_text(outcome: Outcome) -> bool:
    return outcome.job.part == f"{outcome.job.num_frames} frames"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 prompts, 1 seed, 22 and 56 frames, 1 keyframe picture")
    parser.add_argument("--model", help="checkpoint folder; the embedded one if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    name = device_name(args.device)  # a device that is none is refused before the work
    outcomes = run_jobs(jobs_of(args.quick), args.model, args.device, args.workers, quiet=False)
    result = report(outcomes, args.device, args.quick)
    print(table(outcomes), failures(outcomes), sep="\n\n")
    for name, passed in result["checks"].items():
        print("pass" if passed else "FAIL", name)
    out = args.out or (None if args.quick else RESULTS / f"meaning-{name}.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(result["checks"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
