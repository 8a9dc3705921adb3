"""One result file of ``bench.memory``, filled by several calls: parts may be run one at a time.

What an earlier call found stays until it is measured again, whatever its commit; ``shape`` says for each part at which
commits it was run (the newest last; a figure that was taken again is the newest's) and with which attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from bench.memory.run import Run
from bench.report import commit, device_name, write_result
from talkies.benchmarks.timing import GIB

BEFORE = "others"  # parts of a file that is older than the list of commits


def write(run: Run, part: str) -> Path:
    """After every part, so that nothing is lost when the next one is ended from outside."""
    name, bench = device_name(run.device), "streaming-smoke" if run.smoke else "streaming"
    old = _earlier(run, run.out / f"{bench}-{name}.json")
    before: dict[str, Any] = old.get("shape", {})
    commits: dict[str, str] = before.get("commits") or ({BEFORE: old["commit"]} if old else {})
    attentions: dict[str, str] = before.get("attentions") or ({BEFORE: before["attention"]} if before else {})
    rows = {s.layout().num_rows for s in run.shapes} | set(before.get("rows", ()))
    attentions = attentions | {part: run.attention}
    shape = {
        "rows": sorted(rows, reverse=True),
        "blocks": run.config.num_layers,
        "attention": ", ".join(sorted(set(attentions.values()))),
        "attentions": attentions,
        "kernels": run.kernels,
        "vram_budget_gib": run.vram_budget / GIB,
        "commits": commits | {part: _newest_last(commits.get(part), commit())},
    }
    return write_result(
        bench,
        name,
        shape=shape,
        metrics={k: v for k, v in (old.get("metrics", {}) | run.metrics).items() if k not in run.withdrawn},
        peer=old.get("peer", {}) | run.peer,
        checks=old.get("checks", {}) | run.checks,
        folder=run.out,
    )


def _newest_last(known: str | None, now: str) -> str:
    earlier = [c for c in (known or "").split(", ") if c and c != now]
    return ", ".join([*earlier, now])


def _earlier(run: Run, path: Path) -> dict[str, Any]:
    """What stands in ``path``; nothing of another torch, nor of a file that cannot be read: both are kept aside."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    try:
        old: dict[str, Any] = json.loads(text)
        if old["torch"] == torch.__version__:
            return old
        why = f"of torch {old['torch']}"
    except (ValueError, TypeError, KeyError):
        why = "unreadable"
    aside = path.with_suffix(f".{path.stat().st_mtime_ns}.old")
    path.rename(aside)
    run.say(f"  NOT taken over, {why}: {aside}")
    return {}
