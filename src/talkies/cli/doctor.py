"""``talkies doctor``: what this machine can do, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from contextlib import suppress
from importlib import metadata
from typing import Any

import typer

from talkies.cli.common import print_json, reports_errors

LIBRARIES = ("torch", "numpy", "transformers", "diffusers", "safetensors", "av", "pillow", "pillow-heif", "fastapi")


@reports_errors
def doctor(json: bool = typer.Option(False, "--json", help="Writes the report to stdout as one JSON object.")) -> None:
    """Torch, devices, codecs, memory. Exit 1 when something that every clip needs is missing."""
    report = examine()
    if json:
        print_json(report)
    else:
        _print(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    import torch

    from talkies import __version__
    from talkies.media.capabilities import codec_report
    from talkies.placement.stream.host_memory import shm_free_bytes

    problems: list[str] = []
    libraries: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = None
            problems.append(f"{name} is not installed: pip install talkies again")
    codecs = codec_report()
    problems += [f"the installed av has no {name} encoder" for name in ("libx264", "aac") if not codecs.get(name)]
    devices = []
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        properties = torch.cuda.get_device_properties(i)
        devices.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "free_gib": _gib(free),
                "total_gib": _gib(total),
            }
        )
    return {
        "talkies": __version__,  # what runs, installed or not
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": libraries,
        "cuda": torch.version.cuda,
        "devices": devices,
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_gib": _ram_gib(),
        "shm_free_gib": _gib(shm_free_bytes()),
        "tmp_free_gib": _gib(shutil.disk_usage(tempfile.gettempdir()).free),
        "codecs": codecs,
        "problems": problems,
    }


def _ram_gib() -> dict[str, float | None]:
    """``free`` is what budgets are compared with: within the container's limit, caches counted as free."""
    from talkies.capacity.ram import free_ram_bytes

    total = None
    with suppress(ValueError, OSError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"total": _gib(total), "free": _gib(free_ram_bytes())}


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 2**30, 2)


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_row("talkies", f"{report['talkies']}, Python {report['python']}, {report['platform']}")
    table.add_row("libraries", "  ".join(f"{k} {v}" for k, v in report["libraries"].items()))
    devices = [f"{d['name']} ({d['free_gib']} of {d['total_gib']} GiB free)" for d in report["devices"]]
    table.add_row("GPUs", "\n".join(devices) or "none: clips are made on the CPU")
    ram, shm = report["ram_gib"], report["shm_free_gib"]
    table.add_row("CPU", f"{report['cpu_cores']} cores, RAM {ram['free']} of {ram['total']} GiB free")
    of_shm = "" if shm is None else f"/dev/shm {shm} GiB, "
    table.add_row("free", f"{of_shm}temporary files {report['tmp_free_gib']} GiB")
    table.add_row("codecs", "  ".join(f"{k} {'yes' if v else 'no'}" for k, v in report["codecs"].items()))
    table.add_row("problems", "\n".join(report["problems"]) or "none")
    Console().print(table)
