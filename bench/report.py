"""How every benchmark reports: a table on the screen, one JSON in ``bench/results/``."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def bench_device(*, smoke: bool) -> torch.device | None:
    """Where a benchmark of GPU code runs; ``None``, once it is said, where that is nowhere."""
    if not smoke and not torch.cuda.is_available():
        print("error: no CUDA device; --smoke runs tiny sizes on a CPU", file=sys.stderr)
        return None
    return torch.device("cpu" if smoke else "cuda")


def result_of(
    bench: str,
    device: str,
    *,
    shape: Mapping[str, Any],
    metrics: Mapping[str, float],
    peer: Mapping[str, float],
    checks: Mapping[str, bool],
) -> dict[str, Any]:
    """What a result file holds; numbers are rounded to six significant digits."""
    return {
        "bench": bench,
        "device": device,
        "torch": torch.__version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "shape": dict(shape),
        "metrics": {key: _short(value) for key, value in metrics.items()},
        "peer": {key: _short(value) for key, value in peer.items()},
        "checks": {key: bool(good) for key, good in checks.items()},
    }


def write_result(bench: str, device: str, *, folder: Path = RESULTS, **parts: Any) -> Path:
    """:func:`result_of`, which takes ``parts``, as ``<folder>/<bench>-<device>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{bench}-{device}.json"
    path.write_text(json.dumps(result_of(bench, device, **parts), indent=2) + "\n")
    return path


def device_name(device: torch.device | str) -> str:
    """How files and results name a device: ``cpu``, or a GPU's own name as ``nvidia-h200``."""
    device = torch.device(device)
    if device.type != "cuda":
        return device.type
    return "-".join(torch.cuda.get_device_name(device).lower().split())


def commit() -> str:
    """The commit of this checkout, ``+`` when files differ from it; BENCH_COMMIT where it is set: on a machine that
    got a copy of the files, git does not know which."""
    stated = os.environ.get("BENCH_COMMIT")
    if stated:
        return stated
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def print_table(
    title: str, metrics: Mapping[str, float], peer: Mapping[str, float], checks: Mapping[str, bool]
) -> None:
    print(title)
    for name, value in {**metrics, **peer}.items():
        print(f"  {name:<28} {_short(value):>12}")
    for name, good in checks.items():
        print(f"  {name:<48} {'ok' if good else 'NO'}")


def _short(value: float) -> float:
    return float(f"{value:.6g}")
