"""``talkies plan``: where weights would live for a request on this machine, or on one that is only described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import print_json, reports_errors
from talkies.cli.engine_flags import takes_engine_options
from talkies.errors import ConfigError
from talkies.request import Condition, Target, VideoRequest
from talkies.values import parse_size

if TYPE_CHECKING:
    from talkies.capacity.hardware import Hardware
    from talkies.capacity.plan import Plan

RELEASED = "minimax-h3"
PLANNED = (
    "task_type",
    "quantization",
    "text_quantization",
    "quantization_exclude",
    "offload",
    "offload_components",
    "resident_blocks",
    "vram_budget",
    "ram_budget",
    "mlp_rows",
    "head_groups",
    "tensor_parallel",
)  # of the engine's options those that move weights or memory
REQUEST = "Request"


@reports_errors
@takes_engine_options(*PLANNED)
def plan(
    model: str = typer.Argument(
        RELEASED, help="Folder or hub id; the released MiniMax-H3's sizes without a file of it if absent."
    ),
    gpu: str | None = typer.Option(
        None,
        metavar="GPU",
        help="A GPU to plan for: h200, or 24GiB,25GB/s,330TFLOPs, to which ,ram=64GiB and ,fp8=660TFLOPs may be "
        "added; the one here if absent.",
        rich_help_panel="Devices",
    ),
    seconds: float | None = typer.Option(None, help="The clip's length.", rich_help_panel=REQUEST),
    frames: int | None = typer.Option(None, help="The clip's length in frames.", rich_help_panel=REQUEST),
    size: str | None = typer.Option(None, help="The canvas as WIDTHxHEIGHT in pixels.", rich_help_panel=REQUEST),
    aspect: str | None = typer.Option(None, help="The canvas' shape: 16:9, 1:1, ...", rich_help_panel=REQUEST),
    steps: int | None = typer.Option(None, help="Sigma points; 50 are 49 forwards.", rich_help_panel=REQUEST),
    keyframes: int = typer.Option(
        0, min=0, max=2, help="Pictures at the ends of the clip.", rich_help_panel="Conditions"
    ),
    fp8_attention: bool = typer.Option(
        False, "--fp8-attention", help="Attention is in e4m3, too.", rich_help_panel="Advanced"
    ),
    json: bool = typer.Option(
        False, "--json", help="The last line of stdout is one JSON object.", rich_help_panel="Advanced"
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """What stays on the GPU, what streams, chunk sizes, the peak and the seconds of every stage."""
    import torch

    from talkies.capacity.demand import demand_of
    from talkies.capacity.planner import make_plan
    from talkies.capacity.sizes import Sizes
    from talkies.codecs.limits import limits_of
    from talkies.engine.config import EngineConfig
    from talkies.engine.load import planning
    from talkies.engine.load.build import parts_and_limits
    from talkies.h3.config import DiTConfig
    from talkies.h3.geometry import Limits
    from talkies.h3.partitions import PARTITION_TASKS, find_parts
    from talkies.placement.ranks.tensor_parallel import shard_config

    config = EngineConfig.of({"model": model, **engine})
    if model == RELEASED:
        dit = shard_config(DiTConfig(), config.tensor_parallel)
        served = len(PARTITION_TASKS) if config.task_type == "combined" else 1
        sizes = Sizes(dit=dit, tensor_parallel=config.tensor_parallel, num_partitions=served)
        limits = Limits()
    else:
        parts, _ = parts_and_limits(config)
        degree = config.tensor_parallel
        sizes = planning.sizes_of(parts, on_gpu=True, dtype=torch.bfloat16, tensor_parallel=degree)
        limits = limits_of(find_parts(parts.root))  # the clip of a plan stands for any task
    width, height = parse_size(size) if size is not None else (None, None)
    roles = ("first", "last")[:keyframes]
    request = VideoRequest(
        prompt=planning.TYPICAL_PROMPT,
        num_sigmas=steps,
        # No keyframe is there to give the canvas its ratio.
        target=Target(
            width=width, height=height, aspect=aspect or limits.default_aspect, seconds=seconds, num_frames=frames
        ),
        conditions=tuple(Condition(kind="image", uri="keyframe.png", role=role) for role in roles),  # type: ignore[arg-type]
    )
    demand = demand_of(request, limits)
    budgets = (config.vram_budget, config.ram_budget)
    machine = planning.described(gpu, *budgets) if gpu is not None else _here(*budgets, fp8_attention)
    found = make_plan(sizes, demand, machine, planning.wishes_of(config, fp8_attention=fp8_attention))
    if json:
        from dataclasses import asdict

        print_json({"model": model, "hardware": asdict(machine), **found.as_dict()})
    else:
        _print(found, machine)


def _here(vram: int | None, ram: int | None, fp8_attention: bool) -> Hardware:
    import torch

    from talkies.attention import registry
    from talkies.engine.load import planning

    if not torch.cuda.is_available():
        raise ConfigError(
            "this machine has no CUDA device to plan for",
            hint="describe one: --gpu h200, or --gpu 24GiB,25GB/s,330TFLOPs",
            param="gpu",
        )
    device = torch.device("cuda")
    attention = registry.resolve("fa3-fp8" if fp8_attention else "auto", device, torch.bfloat16)
    return planning.machine_of(device, vram, ram, attention=attention)


def _print(found: Plan, machine: Hardware) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from talkies.placement.stream.host_memory import gib

    def size(num_bytes: int) -> str:
        return gib(num_bytes) if num_bytes else "-"

    console = Console()
    demand, layerwise = found.demand, found.residences.dit
    console.print(
        f"[bold]{escape(machine.name)}[/] ({machine.source}): {gib(machine.vram_bytes)}, "
        f"{machine.h2d_bytes_per_s / 1e9:.0f} GB/s, {machine.matmul_flops / 1e12:.0f} TFLOP/s, "
        f"{gib(machine.ram_bytes)} of RAM"
    )
    console.print(
        f"{demand.target.size}, {demand.target.num_frames} frames: {demand.rows} rows, {demand.num_forwards} forwards"
        + (f"; one of {found.tensor_parallel} GPUs that share the DiT" if found.tensor_parallel > 1 else "")
    )
    parts = Table("component", "where", "always there", "while it works", "host")
    for c in found.components:
        where = c.where if c.name != "dit" else f"{found.resident_blocks} of {found.num_blocks} blocks resident"
        parts.add_row(c.name, where, size(c.device_bytes), size(c.visiting_bytes), size(c.host_bytes))
    console.print(parts)
    stages = Table("stage", "peak", "seconds")
    for stage in found.stages:
        stages.add_row(stage.name, gib(stage.peak_bytes), f"{stage.seconds:.2f}")
    stages.add_row("all", gib(found.peak_bytes), f"{found.total_s:.1f}")
    console.print(stages)
    settings: dict[str, Any] = {
        "precision": found.precision,
        "text": found.text_precision,
        "buffers": layerwise.slots if layerwise else 0,
        "mlp_rows": found.chunking.mlp_rows or "all",
        "head_groups": found.chunking.head_groups,
        "forward": f"{found.forward_s:.2f} s",
        "host RAM": gib(found.host_bytes),
    }
    console.print("  ".join(f"{name} {value}" for name, value in settings.items()))
    console.print("Predicted, not measured.", style="dim")
