"""``kernels`` and ``floor`` of bench/dit_forward, and the floor that a forward is run in turn with."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from bench.dit_forward.run import EXACT, Reported, Run
from talkies.benchmarks import floor as fl
from talkies.benchmarks import forward as fw
from talkies.benchmarks import kernels as kn
from talkies.benchmarks.timing import chained, free, in_turn
from talkies.kernels import select


def part_kernels(run: Run) -> None:
    ops, num_rows = select.create(run.kernels), run.inputs().layout.num_rows
    rate = kn.copy_rate(run.device, 1 << (30 if run.on_gpu else 20))
    run.metric("copy_gb_per_s", rate / 1e9, "GB/s")
    seconds = {}
    for name, timing in kn.time_ops(run.config, num_rows, run.device, run.dtype, ops, repeats=run.repeats):
        seconds[name] = timing.seconds
        share = timing.bytes_per_s / rate
        run.say(f"  {name:<34} {timing.seconds * 1e3:8.3f} ms {timing.num_bytes / 1e9:6.2f} GB {share:5.0%} of a copy")
    for precision, names in kn.OF_A_BLOCK.items():
        run.metric(f"elementwise_{precision}_block_ms", sum(seconds[name] for name in names) * 1e3, "ms")
    run.kernel_seconds["ops alone"] = seconds


def part_floor(run: Run) -> None:
    num_rows = run.inputs().layout.num_rows
    ops = select.create(run.kernels)
    repeats = max(3, run.repeats)
    with Reported(run, "attention"):
        seconds: dict[str, float] = {}
        for name in run.backends:
            with Reported(run, f"attention {name}"), torch.inference_mode():
                runs = list(fl.attention_runs(run.config, num_rows, run.device, run.dtype, [name], ops))
                for label, value in chained(runs, run.device, repeats=repeats).items():
                    seconds[label] = value
                    run.metric(f"attention_{label}_ms", value * 1e3, "ms")
            free(run.device)
        run.kernel_seconds["attention alone"] = seconds
    for label in FLOORS:
        with Reported(run, f"products {label}"), torch.inference_mode():
            runs = floor_runs(run, label)
            each = chained(runs, run.device, repeats=repeats, warmups=1)
            products = sum(value for key, value in each.items() if key != "attention")
            detail = " ".join(f"{key} {value * 1e3:.2f}" for key, value in each.items())
            flops = sum(2 * num_rows * k * n for k, n in fl.linear_sizes(run.config).values())
            run.say(f"  a block's {label}: {detail} ms, products {flops / products / 1e12:.0f} TFLOP/s")
            run.metric(f"products_{label}_ms", products * 1e3, "ms")
            run.metric(f"floor_alone_{label}_s", run.config.num_layers * sum(each.values()))
            runs = each = None
        free(run.device)


# Accumulation of the e4m3 products; None for products in the block dtype.
FLOORS: dict[str, bool | None] = {"bf16": None, "fp8": True, "fp8_slow": False}


def floor_runs(run: Run, label: str) -> list[tuple[str, Callable[[], object]]]:
    """The products and the attention of a block: the fastest exact backend, or the e4m3 kernel alone.

    q, k, v lie where one projection leaves them, since moving them apart costs more than it gains (LOG.md).
    """
    seconds = run.kernel_seconds.get("attention alone", {})
    exact = [name for name in seconds if name.split("+")[0] in EXACT and f"{name}+strided" not in seconds]
    name = min(exact, key=seconds.__getitem__) if exact else run.best()
    if label != "bf16" and "fa3-fp8" in run.backends:
        name = "fa3-fp8+kernel"
    num_rows, ops = run.inputs().layout.num_rows, select.create(run.kernels)
    backend = name.split("+")[0]
    attend = dict(fl.attention_runs(run.config, num_rows, run.device, run.dtype, [backend], ops))[name]
    note = f"floor_{label} is with attention {name}, quantising not counted"
    run.notes += [] if note in run.notes else [note]
    return fl.floor_runs(run.config, num_rows, run.device, run.dtype, fast=FLOORS[label], attend=attend)


@torch.inference_mode()
def beside_floor(run: Run, label: str, step: fw.Step, first: fw.Measured, budget: float) -> float:
    """Forwards and floors in turn, the medians of both and their ratio. Returns the forward's seconds."""
    around = fl.projection_runs(run.config, run.inputs().layout, run.device)
    floor = fl.FloorPass(floor_runs(run, label), run.config.num_layers, run.device, around)
    floors, forwards = in_turn(floor, step, run.device, repeats=3 if run.on_gpu else 1)
    run.say(f"  in turn: floors {_list(floors)} s, forwards {_list(forwards)} s, the first alone {first.seconds:.4f} s")
    for name, value in floor.of_a_block().items():
        run.metric(f"floor_{label}_{name}_ms", value * 1e3, "ms")
    seconds, least = statistics.median(forwards), statistics.median(floors)
    run.metric(f"{label}_s", seconds)
    run.metric(f"floor_{label}_s", least)
    ratio = statistics.median(forward / floor for floor, forward in zip(floors, forwards, strict=True))
    run.metric(f"{label}_over_floor", ratio, "x")
    if f"floor_alone_{label}_s" in run.metrics:
        # Its parts ran a handful of times, on a card that was not yet at its power limit: faster than the forward's.
        run.metric(f"{label}_over_floor_alone", seconds / run.metrics[f"floor_alone_{label}_s"], "x")
    if run.on_gpu:
        run.check(f"{label}_within_budget_of_floor", ratio <= budget, f"{ratio:.4f} x the floor, budget {budget}")
    return seconds


def _list(seconds: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in seconds)
