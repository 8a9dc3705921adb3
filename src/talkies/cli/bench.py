"""``talkies bench``: what this machine does with one forward, its kernels, a whole clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from talkies.cli.common import print_json, reports_errors
from talkies.cli.engine_flags import takes_engine_options
from talkies.cli.help_page import Command

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)

JSON = typer.Option(False, "--json", help="Writes the results as one JSON object on the last line of stdout.")


@app.command("forward", cls=Command)
@reports_errors
@takes_engine_options("device", "attention", "kernels", "quantization", "mlp_rows", "head_groups")
def forward(
    size: str = typer.Option(
        "auto",
        help="The size of the forward: full (8.7 s of 1152x832), small (5 s of 672x384), tiny, or auto, which is "
        "full on a GPU.",
    ),
    layers: int | None = typer.Option(
        None, min=1, help="How many blocks the model has. By default it has all of them."
    ),
    repeats: int = typer.Option(3, min=1, help="How many times to measure; the median is reported."),
    json: bool = JSON,
    *,
    engine: dict[str, Any],
) -> None:
    """One forward of the DiT with random weights, against its products and attention alone."""
    from talkies.benchmarks import report

    found = report.forward(
        size=size,
        layers=layers,
        repeats=repeats,
        **engine,
    )
    _show(found, json)


@app.command("kernels", cls=Command)
@reports_errors
@takes_engine_options("device", "kernels")
def kernels(
    size: str = typer.Option(
        "auto", help="The size of the operands: full, small, tiny, or auto, which is full on a GPU."
    ),
    repeats: int = typer.Option(10, min=1, help="How many times to measure; the median is reported."),
    json: bool = JSON,
    *,
    engine: dict[str, Any],
) -> None:
    """Each fused op: milliseconds, and the share of the rate at which this device copies."""
    from talkies.benchmarks import report

    _show(report.kernels(size=size, repeats=repeats, **engine), json)


@app.command("e2e", cls=Command)
@reports_errors
@takes_engine_options()
def e2e(
    prompt: str = typer.Option(
        "a red ball bounces slowly on a dark background with a bell sound",
        help="A description of the clip that is measured.",
    ),
    steps: int | None = typer.Option(
        None, help="The number of noise levels, one more than forwards. The default is the checkpoint's."
    ),
    repeats: int = typer.Option(3, min=1, help="How many times to measure; the median is reported."),
    json: bool = JSON,
    *,
    engine: dict[str, Any],
) -> None:
    """Prompt to MP4: the median seconds of each stage, after one clip to warm up."""
    from talkies.benchmarks import report

    found = report.e2e(
        prompt=prompt,
        num_sigmas=steps,
        repeats=repeats,
        **engine,
    )
    _show(found, json)


@app.command("quality", cls=Command)
@reports_errors
@takes_engine_options()
def quality(
    requests: Path | None = typer.Option(
        None, metavar="FILE", help="Requests to measure, a JSON object a line; four prompts for t2va if absent."
    ),
    steps: list[int] = typer.Option([], help="Sigma points, repeatable; the checkpoint's own and 50 if absent."),
    json: bool = JSON,
    *,
    engine: dict[str, Any],
) -> None:
    """What each tier of quality skips, saves and changes: against the same clips with nothing skipped."""
    from talkies.benchmarks import quality as tiers
    from talkies.benchmarks.calibrate import default_requests
    from talkies.cli.calibrate import read_requests
    from talkies.cli.common import say

    wanted = default_requests() if requests is None else read_requests(requests)
    found = tiers.report(wanted, steps or [None, 50], say, **engine)
    if json:
        print_json(found)
        return
    for name, values in found.items():
        print(name)
        _show(values, False)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in found.items():
        table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    Console().print(table)
