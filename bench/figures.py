"""Which file, commit and peer each published figure rests on, and whether the code has changed since.

    python -m bench.figures [--results bench/results] [--check] [--write docs/performance.md]

Prints the table of docs/performance.md from the result files, or puts it there (--write). A file is stale when the
commit that made it is unknown or was not clean ("+"), or when code that it rests on (``RESTS_ON``) differs from that
commit's. With --check only what is stale is printed, and the exit code is 1 where something is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import RESULTS

COMMON = ("bench/report.py", "src/talkies/model", "src/talkies/kernels", "src/talkies/attention", "src/talkies/h3")
WHOLE = ("bench/report.py", "src/talkies")
# What the figures of a file rest on: paths of the repository.
RESTS_ON: dict[str, tuple[str, ...]] = {
    "dit_forward": (*COMMON, "bench/dit_forward", "src/talkies/benchmarks", "src/talkies/placement"),
    "streaming": (
        *COMMON,
        "bench/memory",
        "src/talkies/benchmarks",
        "src/talkies/placement",
        "src/talkies/capacity",
        "src/talkies/codecs",
    ),
    "text_encoder": (*COMMON, "bench/text_encoder.py", "bench/random_modules.py", "src/talkies/codecs/text"),
    "precision": ("bench/precision.py", *WHOLE),
    "meaning": ("bench/meaning", *WHOLE),
    "quality": (
        *COMMON,
        "bench/quality.py",
        "bench/meaning",
        "training/judge",
        "src/talkies/assets",
        "src/talkies/benchmarks",
        "src/talkies/codecs",
        "src/talkies/engine/pipeline",
        "src/talkies/sampling",
        "src/talkies/stepcache",
    ),
    "step_caches": (*COMMON, "bench/step_caches.py", "src/talkies/benchmarks", "src/talkies/stepcache"),
    "e2e": ("bench/e2e_cpu.py", *WHOLE),
    "start": ("bench/start.py", "bench/load.py", *WHOLE),
    "load": ("bench/load.py", *WHOLE),
    "scheduling": ("bench/scheduling.py", *WHOLE),
}
# What is published of a file, in README.md and docs/.
FIGURES = {
    "dit_forward": "forwards, floors, blocks, errors of one forward, small forwards, saturation",
    "streaming": "weights that stream, budgets, plans, two cards",
    "text_encoder": "text encoder",
    "precision": "what a precision moves in final clips",
    "meaning": "what clips show and sound like",
    "quality": "what tiers of quality skip, save and change",
    "step_caches": "what a step cache costs beside a forward",
    "e2e": "124 frames and the default clip on a CPU",
    "start": "clip, command and server on a CPU",
    "load": "nothing lost, nothing twice",
    "scheduling": "waiting under each policy",
}
BEGIN, END = "<!-- bench.figures -->", "<!-- end of bench.figures -->"
# With what a peer in a file ran, beside the same weights on the same device.
PEERS = {
    "dit_forward": "diffusers 0.42.1: eager, its default attention; compiled blocks (fullgraph), cuDNN attention",
    "e2e": "diffusers' modular pipeline, fp32, the same weights and noise, in turn",
    "start": "a process that imports torch and runs a fixed loop of products",
    "quality": "the same engine with every forward run",
    "precision": "the same engine, exact, the same seed and another one",
}


def stale(result: Mapping[str, Any], root: Path) -> str | None:
    """Why the figures of a result file may no longer hold for the code in ``root``; None while they do."""
    reasons = []
    for commit in commits(result):
        if commit.endswith("+"):
            reasons.append(f"{commit}: made by files that no commit holds")
            continue
        paths = RESTS_ON.get(result["bench"])
        if paths is None:
            return f"bench {result['bench']} is not in RESTS_ON"
        command = ["git", "-C", str(root), "diff", "--quiet", commit, "--", *paths]
        code = subprocess.run(command, capture_output=True).returncode
        if code:
            reasons.append(f"{commit}: " + ("code that it rests on has changed" if code == 1 else "unknown to git"))
    return "; ".join(reasons) or None


def commits(result: Mapping[str, Any]) -> list[str]:
    """Of a file that is filled by several calls the newest commit of each part, else its own."""
    parts = result["shape"].get("commits")
    if not parts:
        return [result["commit"]]
    return sorted({each.split(", ")[-1] for each in parts.values()})


def result_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if "details" not in path.name)


def table(files: Sequence[Path]) -> str:
    lines = ["| figures | file | commit | date | torch | peer | checks |", "|---|---|---|---|---|---|---|"]
    for path in files:
        result = json.loads(path.read_text())
        bad = [name for name, good in result["checks"].items() if not good]
        checks = f"{len(result['checks'])} hold" if not bad else "NOT: " + ", ".join(bad)
        made = ", ".join(commits(result))
        cells = (
            FIGURES[result["bench"]],
            path.name,
            made,
            result["date"],
            result["torch"],
            PEERS.get(result["bench"], "-"),
            checks,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args(argv)
    files = result_files(arguments.results)
    if arguments.write:
        before, _, rest = arguments.write.read_text().partition(BEGIN)
        arguments.write.write_text(f"{before}{BEGIN}\n{table(files)}\n{END}{rest.partition(END)[2]}")
    elif not arguments.check:
        print(table(files))
    found = {path.name: stale(json.loads(path.read_text()), arguments.root) for path in files}
    for name, why in found.items():
        if why:
            print(f"stale: {name}: {why}", file=sys.stderr)
    return 1 if arguments.check and any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
