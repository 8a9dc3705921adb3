"""``talkies plan``: where weights would live for a request on this machine, or on one that is only described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import parse_bytes, print_json, reports_errors
from talkies.errors import ConfigError
from talkies.request import Condition, Target, VideoRequest
from talkies.values import parse_size

if TYPE_CHECKING:
    from talkies.capacity.hardware import Hardware
    from talkies.capacity.plan import Plan

RELEASED = "minimax-h3"


@reports_errors
def plan(
    model: str = typer.Argument(
        RELEASED, help="Folder or hub id; the released MiniMax-H3's sizes without a file of it if absent."
    ),
    gpu: str | None = typer.Option(
        None, help="h200, or 24GiB,25GB/s,330TFLOPs[,ram=64GiB][,fp8=660TFLOPs]; this machine's GPU if absent."
    ),
    seconds: float | None = typer.Option(None, help="Length of the clip."),
    frames: int | None = typer.Option(None, help="The same in frames."),
    size: str | None = typer.Option(None, help="WIDTHxHEIGHT."),
    aspect: str | None = typer.Option(None, help="16:9, 1:1, ..."),
    steps: int | None = typer.Option(None, help="Sigma points; 50 are 49 forwards."),
    keyframes: int = typer.Option(0, min=0, max=2, help="Pictures at the ends of the clip."),
    quantization: str = typer.Option("none", help="none or fp8."),
    text_quantization: str = typer.Option("none", help="The same of the text encoder."),
    fp8_attention: bool = typer.Option(False, "--fp8-attention", help="Attention in e4m3, too."),
    resident_blocks: int | None = typer.Option(None, min=0, help="DiT blocks that stay; the fastest choice if absent."),
    tensor_parallel_size: int = typer.Option(
        1,
        "--tensor-parallel-size",
        "--num-gpus",
        "-tp",
        min=1,
        help="GPUs that share the DiT; all else is on the first one.",
    ),
    vram_budget: str | None = typer.Option(None, help="Such as 12GiB, of each GPU; all that is free if absent."),
    ram_budget: str | None = typer.Option(None, help="Such as 64GiB; all that is free if absent."),
    json: bool = typer.Option(False, "--json", help="One JSON object on the last line of stdout."),
) -> None:
    """What stays on the GPU, what streams, chunk sizes, the peak and the seconds of every stage."""
    import torch

    from talkies.capacity.demand import demand_of
    from talkies.capacity.plan import Wishes
    from talkies.capacity.planner import make_plan
    from talkies.capacity.sizes import Sizes
    from talkies.codecs.limits import limits_of
    from talkies.engine.config import EngineConfig
    from talkies.engine.load import planning
    from talkies.engine.load.build import locate
    from talkies.h3.config import DiTConfig
    from talkies.h3.geometry import Limits
    from talkies.h3.partitions import find_parts
    from talkies.placement.quantize import QuantizeConfig
    from talkies.placement.ranks.tensor_parallel import shard_config

    vram, ram = parse_bytes("vram_budget", vram_budget), parse_bytes("ram_budget", ram_budget)
    if model == RELEASED:
        dit = shard_config(DiTConfig(), tensor_parallel_size)
        sizes, limits = Sizes(dit=dit, tensor_parallel=tensor_parallel_size), Limits()
    else:
        parts = find_parts(locate(model))
        sizes = planning.sizes_of(parts, on_gpu=True, dtype=torch.bfloat16, tensor_parallel=tensor_parallel_size)
        limits = limits_of(parts)
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
    machine = planning.described(gpu, vram, ram) if gpu is not None else _here(vram, ram, fp8_attention)
    quantize = QuantizeConfig(method=quantization)  # type: ignore[arg-type]
    text_quantize = EngineConfig(text_quantization=text_quantization).text_quantize  # type: ignore[arg-type]
    wishes = Wishes(
        resident_blocks=resident_blocks,
        quantize=quantize,
        text_quantize=text_quantize,
        fp8_attention=fp8_attention,
    )
    found = make_plan(sizes, demand, machine, wishes)
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
