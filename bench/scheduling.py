"""Who waits how long: Poisson arrivals of short and long clips under each policy, with and without co-batching.

    python -m bench.scheduling [--jobs 16] [--repeats 3] [--model FOLDER]

Each policy is run --repeats times, all of them in turn, on the same arrival lists (one a repeat): three short clips
(22 frames, 6 points) to one long (56 frames, 20 points). Latency is from submit to the finished file; medians over the
repeats, with the least and the most of the two p95. What short clips gain, long ones pay: p95 of all jobs stands beside
p95 of short ones, each also as a ratio to fifo's. Writes bench/results/scheduling-cpu.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench.report import print_table, write_result
from talkies.engine.config import EMBEDDED, EngineConfig
from talkies.engine.port.service import TERMINAL, Job, JobEvent
from talkies.engine.service.executor import Executor
from talkies.request import Target, VideoRequest

PROMPT = "a red ball bounces quickly on a dark background with a drum sound"
SHORT = VideoRequest(prompt=PROMPT, num_sigmas=6, target=Target(num_frames=22))
LONG = VideoRequest(prompt=PROMPT, num_sigmas=20, target=Target(num_frames=56))
BATCHED_ROWS = 2_000  # found at warm-up this is 1 on most CPUs: there is nothing to gain, which the bench may show


def arrivals(count: int, mean_gap_s: float, seed: int) -> list[tuple[float, bool]]:
    """(seconds from the start, is it long), the same for every policy."""
    rng, at, out = random.Random(seed), 0.0, []
    for i in range(count):
        out.append((at, i % 4 == 0))
        at += rng.expovariate(1 / mean_gap_s)
    return out


def run(model: str, policy: str, max_num_seqs: int, plan: list[tuple[float, bool]]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = BATCHED_ROWS if max_num_seqs > 1 else None
        executor = Executor(EngineConfig(model=model), policy=policy, max_num_seqs=max_num_seqs, max_step_rows=rows)
        ended: dict[str, tuple[float, str]] = {}
        all_ended = threading.Event()

        def on_event(event: JobEvent) -> None:
            if event.kind in TERMINAL:
                ended[event.job_id] = (time.monotonic(), event.kind)
                if len(ended) == len(plan):
                    all_ended.set()

        executor.start(on_event)
        while executor.state == "loading":
            time.sleep(0.05)
        begun = time.monotonic()
        submitted = {}
        for i, (at, is_long) in enumerate(plan):
            time.sleep(max(0.0, begun + at - time.monotonic()))
            submitted[str(i)] = time.monotonic()
            request = (LONG if is_long else SHORT).replace(seed=i)
            executor.submit(Job(id=str(i), request=request, outputs=(folder / f"{i}.mp4",)))
        assert all_ended.wait(600), "a job never ended"
        executor.close()
        assert all(kind == "finished" and (folder / f"{i}.mp4").is_file() for i, (_, kind) in ended.items())
    latency = {i: ended[i][0] - submitted[i] for i in ended}
    short = sorted(latency[str(i)] for i, (_, is_long) in enumerate(plan) if not is_long)
    values = sorted(latency.values())
    return {
        "short_p95_s": short[min(len(short) - 1, int(0.95 * len(short)))],
        "mean_s": statistics.mean(values),
        "p95_s": values[min(len(values) - 1, int(0.95 * len(values)))],
        "total_s": max(t for t, _ in ended.values()) - begun,
    }


POLICIES = ("fifo", "shortest-remaining", "fair")


def summary(found: dict[str, list[dict[str, float]]]) -> tuple[dict[str, float], dict[str, bool]]:
    """(metrics, checks) of the runs of each policy, fifo's among them: a gain counts in every repeat or not at all."""
    metrics: dict[str, float] = {}
    for name, runs in found.items():
        for key in runs[0]:
            values = [run[key] for run in runs]
            metrics[f"{name}_{key}"] = statistics.median(values)
            if key in ("short_p95_s", "p95_s"):
                metrics[f"{name}_{key}_least"], metrics[f"{name}_{key}_most"] = min(values), max(values)
                ratios = [run[key] / fifo[key] for run, fifo in zip(runs, found["fifo"], strict=True)]
                metrics[f"{name}_{key.removesuffix('_s')}_over_fifo"] = statistics.median(ratios)
    pairs = list(zip(found["shortest-remaining"], found["fifo"], strict=True))
    checks = {
        "short_clips_wait_less_than_fifo_in_every_repeat": all(a["short_p95_s"] <= b["short_p95_s"] for a, b in pairs)
    }
    return metrics, checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--gap", type=float, default=0.6, help="mean seconds between arrivals")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default=EMBEDDED)
    args = parser.parse_args()
    plans = [arrivals(args.jobs, args.gap, seed=seed) for seed in range(1, args.repeats + 1)]
    found: dict[str, list[dict[str, float]]] = {}
    for plan in plans:
        for max_num_seqs in (1, 4):
            for policy in POLICIES:
                name = policy if max_num_seqs == 1 else f"{policy}+co-batching"
                found.setdefault(name, []).append(run(args.model, policy, max_num_seqs, plan))
                print(name, {key: round(value, 2) for key, value in found[name][-1].items()}, flush=True)
    metrics, checks = summary(found)
    shape = {"jobs": args.jobs, "repeats": args.repeats, "mean_gap_s": args.gap, "long_share": 0.25}
    print_table("latency by policy", metrics, {}, checks)
    write_result("scheduling", "cpu", shape=shape, metrics=metrics, peer={}, checks=checks)


if __name__ == "__main__":
    main()
