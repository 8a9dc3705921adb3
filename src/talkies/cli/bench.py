"""``talkies bench``: what this machine does with one forward, its kernels, a whole clip."""

from __future__ import annotations

from typing import Any

import typer

from talkies.cli.common import print_json, reports_errors

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)

DEVICE = typer.Option("auto", envvar="TALKIES_DEVICE", help="auto, cpu, cuda or cuda:N.")
ATTENTION = typer.Option("auto", envvar="TALKIES_ATTENTION", help="auto, sdpa, cudnn, fa3, fa3-fp8, fa4, flex or sage.")
KERNELS = typer.Option("auto", envvar="TALKIES_KERNELS", help="auto, triton or reference.")
JSON = typer.Option(False, "--json", help="One JSON object on the last line of stdout.")


@app.command("forward")
@reports_errors
def forward(
    size: str = typer.Option("auto", help="full (8.7 s), small (672x384, 5 s) or tiny; auto: full on a GPU."),
    layers: int | None = typer.Option(None, min=1, help="Blocks of the model; all when absent."),
    device: str = DEVICE,
    attention: str = ATTENTION,
    kernels: str = KERNELS,
    quantization: str = typer.Option("none", help="none or fp8."),
    mlp_rows: int | None = typer.Option(None, help="Rows through a feed-forward at a time; all when absent."),
    head_groups: int = typer.Option(1, help="Turns in which attention computes its heads."),
    repeats: int = typer.Option(3, min=1, help="Measurements; the median counts."),
    json: bool = JSON,
) -> None:
    """One forward of the DiT with random weights, against its products and attention alone."""
    from talkies.benchmarks import report

    found = report.forward(
        size=size,
        layers=layers,
        device=device,
        attention=attention,
        kernels=kernels,
        quantization=quantization,
        mlp_rows=mlp_rows,
        head_groups=head_groups,
        repeats=repeats,
    )
    _show(found, json)


@app.command("kernels")
@reports_errors
def kernels(
    size: str = typer.Option("auto", help="full, small or tiny; auto: full on a GPU."),
    device: str = DEVICE,
    kernels: str = KERNELS,
    repeats: int = typer.Option(10, min=1, help="Measurements; the median counts."),
    json: bool = JSON,
) -> None:
    """Each fused op: milliseconds, and the share of the rate at which this device copies."""
    from talkies.benchmarks import report

    _show(report.kernels(size=size, device=device, kernels=kernels, repeats=repeats), json)


@app.command("e2e")
@reports_errors
def e2e(
    prompt: str = typer.Option(
        "a red ball bounces slowly on a dark background with a bell sound", help="What happens in the clip."
    ),
    model: str | None = typer.Option(None, envvar="TALKIES_MODEL", help="Folder or hub id; embedded if absent."),
    steps: int | None = typer.Option(None, help="Sigma points; the checkpoint's when absent."),
    device: str = DEVICE,
    attention: str = ATTENTION,
    kernels: str = KERNELS,
    quantization: str = typer.Option("none", help="none or fp8."),
    repeats: int = typer.Option(3, min=1, help="Measurements; the median counts."),
    json: bool = JSON,
) -> None:
    """Prompt to MP4: the median seconds of each stage, after one clip to warm up."""
    from talkies.benchmarks import report

    found = report.e2e(
        prompt=prompt,
        model=model,
        num_sigmas=steps,
        device=device,
        attention=attention,
        kernels=kernels,
        quantization=quantization,
        repeats=repeats,
    )
    _show(found, json)


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
