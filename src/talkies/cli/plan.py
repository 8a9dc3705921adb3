"""``talkies plan``: where weights would live for a request on this machine, or on one that is only described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import print_json, reports_errors
from talkies.cli.engine_flags import takes_engine_options
from talkies.errors import ConfigError
from talkies.request import Condition, Target, VideoRequest
from talkies.values import parse_size

if TYPE_CHECKING:
    from talkies.capacity.hardware import Hardware

RELEASED = "minimax-h3"
PLANNED = (
    "task_type",
    "revision",
    "quantization",
    "text_quantization",
    "quantization_exclude",
    "adapters",
    "offload",
    "offload_components",
    "resident_blocks",
    "vram_budget",
    "ram_budget",
    "mlp_rows",
    "head_groups",
    "num_gpus",
    "tensor_parallel",
    "ulysses_degree",
    "ring_degree",
)  # of the engine's options those that move weights or memory
# Of these the ones that decide precision or place; where none is stated, all precisions are tried.
DECIDED = frozenset(PLANNED) - {
    "task_type",
    "revision",
    "vram_budget",
    "ram_budget",
    "num_gpus",
    "tensor_parallel",
    "ulysses_degree",
    "ring_degree",
}
REQUEST = "Request"


@reports_errors
@takes_engine_options(*PLANNED)
def plan(
    model: str = typer.Argument(
        RELEASED,
        help="The checkpoint to plan for: a folder, a hub id, or minimax-h3, which is the released model and "
        "needs no file of it.",
    ),
    gpu: str | None = typer.Option(
        None,
        metavar="GPU",
        help="The GPU to plan for: its name, such as 4090 or h100, or its memory, bus and rate, such as "
        "24GiB,25GB/s,330TFLOPs. Host memory and an fp8 rate may follow, as ,ram=128GiB,fp8=660TFLOPs. By default it "
        "is the GPU of this machine.",
        rich_help_panel="Devices",
    ),
    seconds: float | None = typer.Option(
        None, help="The length of the clip in seconds. The default is the checkpoint's.", rich_help_panel=REQUEST
    ),
    frames: int | None = typer.Option(
        None,
        help="The length of the clip in frames, instead of --seconds. The default is the checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    size: str | None = typer.Option(
        None,
        help="The size of the picture as WIDTHxHEIGHT in pixels. By default it follows from --aspect.",
        rich_help_panel=REQUEST,
    ),
    aspect: str | None = typer.Option(
        None, help="The shape of the picture, such as 16:9 or 1:1. The default is 16:9.", rich_help_panel=REQUEST
    ),
    steps: int | None = typer.Option(
        None,
        help="The number of noise levels, 0 at the end included: 50 of them take 49 forwards. The default is the "
        "checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    keyframes: int = typer.Option(
        0,
        min=0,
        max=2,
        help="How many pictures are given for the ends of the clip, 0 to 2.",
        rich_help_panel="Conditions",
    ),
    fp8_attention: bool = typer.Option(
        False,
        "--fp8-attention",
        help="Plans with fp8 attention (fa3-fp8), which is an approximation.",
        rich_help_panel="Advanced",
    ),
    json: bool = typer.Option(
        False,
        "--json",
        help="Writes the plan, or an error, as one JSON object on the last line of stdout.",
        rich_help_panel="Advanced",
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """What a GPU can do with a model: the precisions that fit, what stays on it, what streams, peak and seconds."""

    import torch

    from talkies.adapters.route import open_adapters
    from talkies.capacity.demand import demand_of
    from talkies.capacity.planner import make_plan
    from talkies.capacity.sizes import Sizes, TextSizes
    from talkies.capacity.weight_bytes import file_bytes
    from talkies.cli import plan_page
    from talkies.codecs.limits import limits_of
    from talkies.engine.config import EngineConfig
    from talkies.engine.load import planning, proposals
    from talkies.engine.load.checkpoint import checkpoint_of, with_adapters
    from talkies.h3.config import DiTConfig
    from talkies.h3.geometry import Limits
    from talkies.h3.partitions import PARTITION_TASKS, find_parts
    from talkies.placement.ranks.tensor_parallel import shard_config

    config = EngineConfig.of({"model": model, **engine})
    if model == RELEASED:
        if config.revision is not None:
            raise ConfigError(
                f"revision={config.revision}, but the sizes of {RELEASED} are known without a file of it",
                hint="leave it out, or name a model on the hub",
                param="revision",
            )
        config.mesh.check(DiTConfig(), head_groups=config.head_groups)
        dit = shard_config(DiTConfig(), config.tensor_parallel)
        served = len(PARTITION_TASKS) if config.task_type == "combined" else 1
        text = TextSizes(shards=config.text_tensor_parallel)
        sizes = Sizes(dit=dit, text=text, mesh=config.mesh, num_partitions=served)
        limits, adapters = Limits(), open_adapters(config.adapters, tuple(PARTITION_TASKS))
    else:
        known = checkpoint_of(config, headers_only=True)
        sizes = planning.sizes_of(
            known.parts, on_gpu=True, dtype=torch.bfloat16, mesh=config.mesh, num_text=config.text_tensor_parallel
        )
        limits = limits_of(find_parts(known.parts.root))  # the clip of a plan stands for any task
        adapters = known.adapters
    limits = with_adapters(limits, adapters)  # a distilled one has its own number of forwards
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
    choices: tuple[proposals.Proposal, ...] = ()
    if DECIDED.isdisjoint(engine) and not fp8_attention:
        choices = proposals.proposals(config, sizes, demand, machine)
        taken = proposals.best(choices)
        if taken is None or taken.plan is None:
            raise proposals.nothing_fits(choices, machine)
        found, settings = taken.plan, {**engine, **taken.settings}
        sizes = replace(sizes, num_partitions=taken.num_partitions)
    else:
        found = make_plan(sizes, demand, machine, planning.wishes_of(config, fp8_attention=fp8_attention))
        settings = engine
    ram_assumed = gpu is not None and "ram=" not in gpu and config.ram_budget is None
    page = plan_page.Page(model, machine, found, choices, command(model, settings), file_bytes(sizes), ram_assumed)
    if json:
        print_json(page.as_dict())
    else:
        plan_page.show(page)


def command(model: str, settings: Mapping[str, Any]) -> str:
    """The line that serves what was planned."""
    from talkies.engine.load.proposals import flags_of

    return " ".join(filter(None, ("talkies serve", "FOLDER" if model == RELEASED else model, flags_of(settings))))


def _here(vram: int | None, ram: int | None, fp8_attention: bool) -> Hardware:
    import torch

    from talkies.attention import registry
    from talkies.engine.load import planning

    if not torch.cuda.is_available():
        raise ConfigError(
            "this machine has no CUDA device to plan for",
            hint="name one: --gpu 4090 or --gpu h200,ram=256GiB; or describe it: --gpu 24GiB,25GB/s,330TFLOPs",
            param="gpu",
        )
    device = torch.device("cuda")
    attention = registry.resolve("fa3-fp8" if fp8_attention else "auto", device, torch.bfloat16)
    return planning.machine_of(device, vram, ram, attention=attention)
