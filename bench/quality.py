"""What quality=high, medium and low skip, save and change on the embedded checkpoint: `python -m bench.quality`

A fixed list of requests for all three tasks (prompts, keyframes and references of `bench.meaning`, 56 frames, others
than the calibration's), at the checkpoint's default steps and at 50 sigma points, each without skipping and with each
tier. The judge of `training.judge` says what a clip shows; *meaning* is the share of the attributes which the lossless
clip has right that the other has right, too. Prints a table, writes `bench/results/quality-<device>.json`, from which
`python -m bench.charts` draws `docs/img/quality.svg`, and exits with 1 if a bound is exceeded.

`--calibrate` first calibrates from other requests of the same kinds and writes the checkpoint's `step_caches.json`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.meaning.cases import CASES, KEYFRAME_CASES
from bench.meaning.clips import Job, request_of
from bench.meaning.references import REFERENCE_CASES
from bench.report import RESULTS, device_name, write_result
from talkies.benchmarks.calibrate import calibrate
from talkies.benchmarks.differences import differences
from talkies.benchmarks.quality import Measured, measure, summary
from talkies.engine.engine import Engine
from talkies.files.step_caches import FILE_NAME, write_tiers
from talkies.quality import TIERS, CachePolicy, Tiers
from talkies.request import VideoRequest
from training.judge.verdict import Verdict, is_right, judge, wanted

NUM_FRAMES = 56
FRAME_MS = 1000 / 24
POINTS = (20, 50)
# Of the clip that is worst: at least so many dB, so much likeness, and so near in level and sync.
BOUNDS: dict[str, dict[str, float]] = {
    "high": {
        "psnr_db": 35.0,
        "ssim": 0.96,
        "si_sdr_db": 31.0,
        "loudness_db": 0.5,
        "logmel_db": 1.0,
        "sync_ms": FRAME_MS,
        "meaning": 1.0,
        "skipped, 19 forwards": 0.25,
        "skipped, 49 forwards": 0.40,
    },
    "medium": {
        "psnr_db": 28.0,
        "si_sdr_db": 20.0,
        "loudness_db": 1.0,
        "logmel_db": 2.0,
        "sync_ms": FRAME_MS,
        "meaning": 1.0,
        "skipped, 49 forwards": 0.55,
    },
    "low": {"psnr_db": 22.0, "si_sdr_db": 10.0, "loudness_db": 2.0, "logmel_db": 4.0, "meaning": 0.9},
}
# Beside the schedules of the tiers: policies that decide while they run, at the thresholds that others publish or so.
OTHERS = {
    "block 0.05": CachePolicy(name="block", parameters={"residual_diff_threshold": 0.05}),
    "block 0.2": CachePolicy(name="block", parameters={"residual_diff_threshold": 0.2}),
    "block 0.2, forecast": CachePolicy(
        name="block", parameters={"residual_diff_threshold": 0.2, "taylorseer_order": 1}
    ),
    "teacache 0.05": CachePolicy(name="teacache", parameters={"threshold": 0.05}),
    "teacache 0.2": CachePolicy(name="teacache", parameters={"threshold": 0.2}),
}
AT_LEAST = ("psnr_db", "ssim", "si_sdr_db", "meaning", "skipped")


def jobs(kind: str) -> list[Job]:
    """``calibrate`` and ``measure`` have nothing in common."""
    calibrated, measured = ((3, 9, 18), (1, 4), (1, 8, 10), 100), ((0, 7, 10), (0, 2), (0, 6), 1)
    text, keys, asked, seed = calibrated if kind == "calibrate" else measured
    made = [Job("text", CASES[i], NUM_FRAMES) for i in text]
    made += [Job("keys", KEYFRAME_CASES[i], NUM_FRAMES, ends=("first", "last") if i % 2 else ("first",)) for i in keys]
    made += [Job("references", REFERENCE_CASES[i].whole, NUM_FRAMES, asked=REFERENCE_CASES[i]) for i in asked]
    return [replace(job, seed=seed) for job in made]


def requests_of(several: Sequence[Job], folder: Path) -> list[VideoRequest]:
    found = []
    for number, job in enumerate(several):
        place = folder / str(number)
        place.mkdir(parents=True)
        found.append(request_of(job, place))
    return found


def meaning(one: Measured, job: Job) -> float:
    """The share of what the lossless clip has right that this one has right, too."""
    shown = judge(one.clip.frames, one.clip.audio)
    before = judge(one.lossless.frames, one.lossless.audio)
    right = [name for name, value in wanted(before, job.case.expected).items() if is_right(_seen(before, name), value)]
    due = wanted(before, job.case.expected)
    return fmean(is_right(_seen(shown, name), due[name]) for name in right) if right else 1.0


def _seen(verdict: Verdict, name: str) -> Any:
    return getattr(verdict, name)


def checks_of(metrics: Mapping[str, float]) -> dict[str, bool]:
    """Each bound by name; those of the worst clip."""
    checks = {}
    for tier, bounds in BOUNDS.items():
        for name, bound in bounds.items():
            what, _, at = name.partition(", ")
            for forwards in [int(at.split()[0])] if at else [points - 1 for points in POINTS]:
                value = metrics[f"{tier}_{forwards}_{'least_skipped' if what == 'skipped' else f'worst_{what}'}"]
                good = value >= bound if what in AT_LEAST else abs(value) <= bound
                checks[f"{tier}, {forwards} forwards: {what} {value:.4g}, bound {bound:.4g}"] = good
    return checks


def others(engine: Engine, requests: Sequence[VideoRequest]) -> dict[str, float]:
    """``OTHERS`` on a few requests, with the most forwards: the means of what is skipped, of picture and of sound."""
    metrics, limits = {}, engine.limits
    asked = [request.replace(num_sigmas=max(POINTS)) for request in requests]
    lossless = [engine.generate(request) for request in asked]
    for name, policy in OTHERS.items():
        tiers = Tiers(checkpoint="any", policies={"low": dict.fromkeys(limits.tasks, (policy,))})
        engine.components.limits = replace(limits, tiers=tiers)
        clips = [engine.generate(request.replace(quality="low")) for request in asked]
        found = [differences(clip, whole) for clip, whole in zip(clips, lossless, strict=True)]
        metrics[f"{name}: skipped"] = fmean(clip.facts.skipped_fraction or 0.0 for clip in clips)
        metrics[f"{name}: psnr_db"] = fmean(one.psnr_db for one in found)
        metrics[f"{name}: si_sdr_db"] = fmean(one.si_sdr_db for one in found if one.si_sdr_db is not None)
        print(name, {key: round(value, 3) for key, value in metrics.items() if key.startswith(f"{name}:")}, flush=True)
    engine.components.limits = limits
    return metrics


def run(model: str | None, device: str, *, calibrates: bool) -> dict[str, Any]:
    engine = Engine.open(model, device=device, threads=1, step_caches="none" if calibrates else None)
    folder = Path(tempfile.mkdtemp(prefix="talkies-quality-"))
    if calibrates:
        tiers = calibrate(engine, requests_of(jobs("calibrate"), folder / "calibrate"), POINTS, say=print)
        write_tiers(engine.components.parts.root / FILE_NAME, tiers)
        engine.components.limits = replace(engine.limits, tiers=tiers)
    several = jobs("measure")
    requests = requests_of(several, folder / "measure")
    found: dict[tuple[str, int], list[Measured]] = {}
    kept: dict[tuple[str, int], list[float]] = {}
    by_task: dict[str, list[Measured]] = {}
    for one in measure(engine, requests, POINTS):
        pairs = zip(requests, several, strict=True)
        job = next(job for r, job in pairs if r.replace(num_sigmas=one.num_forwards + 1) == one.request)
        key = (one.tier, one.num_forwards)
        found.setdefault(key, []).append(one)
        kept.setdefault(key, []).append(meaning(one, job))
        by_task.setdefault(f"{one.tier}_{one.num_forwards}_{one.request.resolved_task}", []).append(one)
        f = one.found
        print(
            f"{one.profile} {one.policy} {one.request.resolved_task} {one.num_forwards}: skipped {one.skipped:.2f}, "
            f"saved {one.saved:.2f}, {f.psnr_db:.1f} dB, SSIM {f.ssim:.4f}, SI-SDR {f.si_sdr_db}, "
            f"meaning {kept[key][-1]:.2f}",
            flush=True,
        )
    metrics: dict[str, float] = {}
    for (tier, forwards), clips in found.items():
        values = {**summary(clips), "meaning": fmean(kept[tier, forwards]), "worst_meaning": min(kept[tier, forwards])}
        metrics |= {f"{tier}_{forwards}_{name}": value for name, value in values.items()}
    for name, clips in by_task.items():
        metrics[f"{name}_psnr_db"] = fmean(one.found.psnr_db for one in clips)
        heard = [one.found.si_sdr_db for one in clips if one.found.si_sdr_db is not None]
        metrics |= {f"{name}_si_sdr_db": fmean(heard)} if heard else {}
        metrics[f"{name}_skipped"] = fmean(one.skipped for one in clips)
    metrics |= others(engine, [requests[0], requests[-2]])
    checks = checks_of(metrics)
    for tier in TIERS:
        for points in POINTS:
            saved, skipped = (metrics[f"{tier}_{points - 1}_{name}"] for name in ("saved", "skipped"))
            checks[f"{tier}, {points - 1} forwards: saves at least 0.9 of what it skips"] = saved >= 0.9 * skipped
    profiles = {f"{tier} {forwards}": clips[0].profile for (tier, forwards), clips in found.items()}
    shape = {"frames": NUM_FRAMES, "requests": len(requests), "threads": engine.components.config.threads, **profiles}
    return {"shape": shape, "metrics": metrics, "peer": {}, "checks": checks}


COLUMNS = {
    "skipped": ("skipped", "{:.0%}"),
    "least": ("least_skipped", "{:.0%}"),
    "saved": ("saved", "{:.0%}"),
    "PSNR, worst": ("worst_psnr_db", "{:.1f} dB"),
    "SSIM, worst": ("worst_ssim", "{:.4f}"),
    "SI-SDR, worst": ("worst_si_sdr_db", "{:.1f} dB"),
    "log-mel, worst": ("worst_logmel_db", "{:.2f} dB"),
    "loudness, worst": ("worst_loudness_db", "{:+.3f} dB"),
    "sync, worst": ("worst_sync_ms", "{:.1f} ms"),
    "meaning kept": ("meaning", "{:.0%}"),
}


def table(metrics: Mapping[str, float]) -> str:
    """For docs/step-caches.md."""
    lines = ["| tier | forwards | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (2 + len(COLUMNS))]
    for tier in TIERS:
        for points in POINTS:
            cells = [form.format(metrics[f"{tier}_{points - 1}_{name}"]) for name, form in COLUMNS.values()]
            lines.append(f"| `{tier}` | {points - 1} | " + " | ".join(cells) + " |")
    measured = [name for name in OTHERS if f"{name}: skipped" in metrics]
    if measured:
        lines += ["", "| policy, 49 forwards, two clips | skipped | PSNR | SI-SDR |", "|---|---|---|---|"]
    for name in measured:
        skipped, psnr_db, si_sdr_db = (metrics[f"{name}: {what}"] for what in ("skipped", "psnr_db", "si_sdr_db"))
        lines.append(f"| {name} | {skipped:.0%} | {psnr_db:.1f} dB | {si_sdr_db:.1f} dB |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", action="store_true", help="write the checkpoint's step_caches.json first")
    parser.add_argument("--model", help="checkpoint folder; the embedded one if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    name = device_name(args.device)
    parts = run(args.model, args.device, calibrates=args.calibrate)
    for check, passed in parts["checks"].items():
        print("pass" if passed else "FAIL", check)
    print(table(parts["metrics"]))
    print(write_result("quality", name, folder=args.out, **parts))
    return 0 if all(parts["checks"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
