"""What ``talkies plan`` shows: the machine, what fits it in each precision, and the plan that is taken, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Plan
from talkies.engine.load.proposals import Proposal
from talkies.placement.stream.host_memory import gib

LEGEND = (
    "Resident weights stay on the GPU. Streamed ones wait in host memory and are on it two layers at a time; evicted "
    "ones wait there, too, and are on it whole while their component works. A forward is one pass through the DiT."
)
# One forward of random weights of the released size (docs/performance.md).
PRECISION_NAMES = {
    ("none", "none"): "bf16, lossless",
    ("fp8", "none"): "fp8 DiT (moves a forward by 0.11)",
    ("fp8", "fp8"): "fp8 DiT and text encoder (by more)",
}


@dataclass(frozen=True, slots=True)
class Page:
    """``choices`` are empty where the user decided the precision; ``file_bytes`` are of the weights on disk;
    ``ram_assumed``: nobody said how much host memory the described machine has."""

    model: str
    machine: Hardware
    plan: Plan
    choices: Sequence[Proposal]
    command: str
    file_bytes: int
    ram_assumed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "model": self.model,
            "hardware": asdict(self.machine),
            **self.plan.as_dict(),
            "command": self.command,
            "checkpoint_bytes": self.file_bytes,
            "proposals": [
                {
                    **choice.settings,
                    "num_partitions": choice.num_partitions,
                    "missing": choice.missing,
                    "plan": None if choice.plan is None else choice.plan.as_dict(),
                }
                for choice in self.choices
            ],
        }


def show(page: Page) -> None:
    """On stdout."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    machine, demand = page.machine, page.plan.demand
    fp8 = f", {machine.fp8_flops / 1e12:.0f} in fp8" if machine.fp8_flops else ""
    console.print(
        f"[bold]{escape(machine.name)}[/] ({machine.source}): {gib(machine.vram_bytes)} of GPU memory, "
        f"{machine.matmul_flops / 1e12:.0f} TFLOP/s sustained in bf16{fp8}; {gib(machine.ram_bytes)} of RAM"
        f"{' (assumed: ,ram=128GiB after --gpu says another)' if page.ram_assumed else ''}, "
        f"{machine.h2d_bytes_per_s / 1e9:.0f} GB/s between them"
    )
    mesh = page.plan.mesh
    shards = f"; one of {mesh.size} GPUs that share each forward ({mesh.described()})" if mesh.size > 1 else ""
    console.print(
        f"A clip of {demand.target.size}, {demand.target.num_frames} frames ({demand.target.duration_s:.1f} s): "
        f"{demand.rows:,} rows, {demand.num_forwards} forwards{shards}"
    )
    if page.choices:
        console.print(_choices(page))
        for choice in page.choices:
            if choice.plan is None:
                console.print(f"{_precision(choice)}, {_dits(choice)}: {choice.missing}")
    console.print(*_details(page.plan), sep="\n")
    console.print(_settings(page.plan))
    console.print(f"Weights on disk: {gib(page.file_bytes)}. To serve it so: [bold]{escape(page.command)}[/]")
    console.print(f"Predicted, not measured. {LEGEND}", style="dim")


def _choices(page: Page) -> Any:
    from rich.table import Table

    table = Table("", "precision", "DiTs", "blocks resident", "GPU peak", "RAM", "a forward", "a clip")
    for choice in page.choices:
        if choice.plan is None:
            table.add_row("", _precision(choice), _dits(choice), "does not fit", *["-"] * 4)
            continue
        plan = choice.plan
        table.add_row(
            "*" if plan is page.plan else "",
            _precision(choice),
            _dits(choice),
            f"{plan.resident_blocks} of {plan.num_blocks}",
            gib(plan.peak_bytes),
            gib(plan.host_bytes),
            spoken(plan.forward_s),
            spoken(plan.total_s),
        )
    table.caption = "* is taken: all DiTs first, then the most exact; it is shown below"
    return table


def _precision(choice: Proposal) -> str:
    return PRECISION_NAMES[choice.settings["quantization"], choice.settings["text_quantization"]]


def _dits(choice: Proposal) -> str:
    """Which of the checkpoint's partitions are loaded."""
    return choice.settings.get("task_type", "all")


def _details(plan: Plan) -> tuple[Any, Any]:
    from rich.table import Table

    parts = Table("component", "where", "always on the GPU", "while it works", "RAM")
    for c in plan.components:
        where = c.where if c.name != "dit" else f"{plan.resident_blocks} of {plan.num_blocks} blocks resident"
        parts.add_row(c.name, where, *map(_size, (c.device_bytes, c.visiting_bytes, c.host_bytes)))
    stages = Table("stage", "GPU peak", "time")
    for stage in plan.stages:
        stages.add_row(stage.name, gib(stage.peak_bytes), spoken(stage.seconds))
    stages.add_row("all", gib(plan.peak_bytes), spoken(plan.total_s))
    return parts, stages


def _settings(plan: Plan) -> str:
    layerwise = plan.residences.dit
    rows = plan.chunking.mlp_rows
    return (
        f"DiT in {plan.precision}, text encoder in {plan.text_precision}; "
        f"{layerwise.slots if layerwise else 0} buffers for streamed blocks; "
        f"feed-forward {f'in chunks of {rows} rows' if rows else 'of all rows at once'}, "
        f"attention in {plan.chunking.head_groups} group{'s' if plan.chunking.head_groups > 1 else ''} of heads; "
        f"{spoken(plan.forward_s)} a forward; {gib(plan.host_bytes)} of RAM"
    )


def _size(num_bytes: int) -> str:
    return gib(num_bytes) if num_bytes else "-"


def spoken(seconds: float) -> str:
    """``0.03 s``, ``12.2 s``, ``10 min 8 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"
