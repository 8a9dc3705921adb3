"""Does a clip show and sound like its prompt? `python -m bench.meaning [--quick | --plain]`

Makes clips with `talkies.Engine` from the fixed prompts of `cases` and lets `training.judge` look at them:

    text       24 prompts x 4 seeds x 22, 56 and 124 frames on the default canvas
    canvases   8 prompts on each of the other five canvases, 56 frames
    keys       6 pictures rendered by the world, as first, last and both; what the picture shows is expected too
    references 16 requests of `references` x 2 seeds at 56 frames: pictures, sounds and clips to follow
    plain      with --plain, and alone: 200 prompts in plain English (`plain`) x 2 seeds at 56 frames
    ceiling    the same clips rendered by the world and pushed through the checkpoint's VAEs: no model can do better

A keyframe is also compared with the decoded frame at its end of the clip (PSNR); its ceiling is what the VAE leaves of
the same frame in the rendered clip. Prints a table, writes `bench/results/meaning-<device>.json` (not with --quick
or --plain unless --out is given) and exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.meaning.cases import CASES, KEYFRAME_CASES, QUICK
from bench.meaning.clips import DEFAULT_CANVAS, Job, run_jobs
from bench.meaning.plain import plain_jobs
from bench.meaning.references import REFERENCE_CASES
from bench.meaning.report import failures, report, table
from bench.report import RESULTS, device_name
from training import world

FRAME_COUNTS = (22, 56, 124)
SEEDS = (0, 1, 2, 3)
ENDS = {"first": ("first",), "last": ("last",), "both": ("first", "last")}


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.meaning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="8 prompts, 1 seed, 22 and 56 frames, 1 keyframe picture")
    parser.add_argument("--plain", action="store_true", help="the prompts in plain English, and no others")
    parser.add_argument("--model", help="checkpoint folder; the embedded one if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if args.plain and args.quick:
        parser.error("--plain and --quick choose different prompts; give one of them")
    name = device_name(args.device)  # a device that is none is refused before the work
    jobs = plain_jobs() if args.plain else jobs_of(args.quick)
    outcomes = run_jobs(jobs, args.model, args.device, args.workers, quiet=False)
    result = report(outcomes, args.device, args.quick)
    print(table(outcomes), failures(outcomes), sep="\n\n")
    for check, passed in result["checks"].items():
        print("pass" if passed else "FAIL", check)
    out = args.out or (None if args.quick or args.plain else RESULTS / f"meaning-{name}.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(result["checks"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
