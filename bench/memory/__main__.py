"""Streaming, its plan and its budget on a GPU, with random full-size weights made on the device.

    python -m bench.memory                              # every part that this machine can run, within --limit-s
    python -m bench.memory --parts bf16,fp8             # some
    python -m bench.memory --smoke                      # every part at tiny sizes on a CPU

    rates   what the planner measures of this machine
    bf16    a forward at 58,758, 20,424 and 6,105 rows with 0 .. all blocks resident: time and peak beside the plan's,
            chunks, outputs bit-equal to resident
    fp8     the same with e4m3 linears
    ranks   two ranks, a GPU each (two processes on a CPU): tensor-parallel shards resident and streamed;
            --rank-parts takes some of tp_fp8, tp_bf16
    e2e     text encoder, 3 forwards, video decode under --vram-budget, as planned; the allocator's cap is set

Writes <out>/streaming-<device>.json after every part; every figure is printed when it is known. What other calls found
stays in that file, with the commit of each part (bench/memory/result.py).
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bench.memory import ranks
from bench.memory.curve import curve
from bench.memory.result import write
from bench.memory.run import Run
from bench.report import RESULTS
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.timing import GIB, Clock, free
from talkies.capacity import measure
from talkies.engine.config import indexed
from talkies.kernels import select
from talkies.placement.quantize import QuantizeConfig

# Seconds that a part needs on an H200.
NEEDS_S = {"rates": 10, "bf16": 240, "fp8": 200, "ranks": 200, "e2e": 240}
MIDDLE = fw.Shape(text=30, audio_latents=207, frames=37, height=36, width=60)
SHORT = fw.Shape(text=30, audio_latents=207, frames=37, height=18, width=34)
SMOKE_CONFIG = replace(fw.TINY, num_layers=6)
SMOKE_SHAPES = (
    fw.SMOKE,
    fw.Shape(text=5, audio_latents=7, frames=7, height=6, width=8),
    fw.Shape(text=5, audio_latents=7, frames=7, height=4, width=6),
)


def part_rates(run: Run) -> None:
    if run.on_gpu:
        run.hardware = measure.rates(run.device, run.attention)
    h = run.hardware
    run.metric("h2d_gb_per_s", h.h2d_bytes_per_s / 1e9, "GB/s" if run.on_gpu else "GB/s (preset)")
    run.metric("matmul_tflops", h.matmul_flops / 1e12, "TFLOP/s")
    run.metric("fp8_tflops", (h.fp8_flops or 0) / 1e12, "TFLOP/s")
    run.metric("attention_tflops", h.attention_flops / 1e12, f"TFLOP/s ({run.attention}, exact)")
    if h.fp8_attention_flops is not None:
        run.metric("fp8_attention_tflops", h.fp8_attention_flops / 1e12, f"TFLOP/s ({run.attention})")
    run.metric("elementwise_gb_per_s", h.elementwise_bytes_per_s / 1e9, "GB/s")


def part_bf16(run: Run) -> None:
    curve(run, "", QuantizeConfig())


def part_fp8(run: Run) -> None:
    curve(run, "fp8_", QuantizeConfig(method="fp8"))


def part_ranks(run: Run) -> None:
    if run.on_gpu and torch.cuda.device_count() < ranks.WORLD:
        run.say("  left out: one GPU")
        return
    free(run.device)
    limit_s = run.clock.left_s - 10
    found = ranks.measure(run.config, run.shapes[0], run.device, run.kernels, run.attention, run.rank_parts, limit_s)
    for name, value in found.items():
        if name.startswith("check "):
            run.check(name.removeprefix("check "), bool(value))
            what, _, why = name.removeprefix("check ").partition(": ")
            if not value and why in ("bit-equal to resident", "close to one rank", "ranks agree bit for bit"):
                run.withdraw(*(f"{what}_{figure}" for figure in ("s", "peak_gib", "card_gib", "speedup")))
        else:
            run.metric(name, value, "")
    if run.on_gpu:
        # Published for two cards and e4m3 weights; of a whole pipeline, where ours is the DiT's stage.
        run.peer["published_fp8_two_cards_gb_per_card"] = 39.85


def part_e2e(run: Run) -> None:
    from bench.memory import e2e

    e2e.run(run)


PARTS: dict[str, Callable[[Run], None]] = {
    "rates": part_rates,
    "bf16": part_bf16,
    "fp8": part_fp8,
    "ranks": part_ranks,
    "e2e": part_e2e,
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--points", default="0,10,20,30,40", help="resident blocks; all of them is always measured")
    parser.add_argument("--rank-parts", default="tp_fp8,tp_bf16", help="what two ranks measure")
    parser.add_argument("--rows", default="58758,20424,6105", help="which of the three lengths")
    parser.add_argument("--vram-budget-gib", type=float, default=12.0)
    # Not what is free: the memory of some virtual machines grows as it is used.
    parser.add_argument("--ram-gib", type=float, default=120.0, help="host memory that e2e may plan with")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=580.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    a = parse(argv)
    unknown = set(a.parts.split(",")) - set(PARTS)
    if unknown:
        print(f"unknown parts {', '.join(sorted(unknown))}: use {', '.join(PARTS)}", file=sys.stderr)
        return 2
    device = indexed(torch.device("cpu" if a.smoke else a.device))
    smoke = a.smoke or device.type == "cpu"
    wanted = {int(n) for n in a.rows.split(",")}
    shapes = [s for s in (fw.FULL, MIDDLE, SHORT) if s.layout().num_rows in wanted]
    run = Run(
        device=device,
        config=SMOKE_CONFIG if smoke else fw.RELEASED,
        shapes=SMOKE_SHAPES if smoke else shapes,
        smoke=smoke,
        kernels=select.automatic(device) if a.kernels == "auto" else a.kernels,
        attention=registry.resolve(a.attention, device, torch.bfloat16),
        vram_budget=round(a.vram_budget_gib * GIB),
        ram_bytes=round(a.ram_gib * GIB),
        points=(0, 2, 3) if smoke else [int(p) for p in a.points.split(",")],
        repeats=a.repeats,
        rank_parts=tuple(filter(None, a.rank_parts.split(","))),
        out=a.out,
        clock=Clock(a.limit_s),
    )
    run.say(f"{device}, torch {torch.__version__}, attention {run.attention}, kernels {run.kernels}")
    for part in [p for p in PARTS if p in a.parts.split(",")]:
        if run.on_gpu and run.clock.left_s < NEEDS_S[part] * 0.5:
            run.say(f"{part}: left out, {run.clock.left_s:.0f} s are left of about {NEEDS_S[part]}")
            continue
        run.say(f"{part}:")
        try:
            PARTS[part](run)
            ended = True
        except Exception:
            traceback.print_exc()
            ended = False
        run.check(f"{part} ran to its end", ended)  # also when it is true: an earlier call may have said otherwise
        free(run.device)
        run.say(f"  written to {write(run, part)}")
    bad = [name for name, good in run.checks.items() if not good]
    run.say(f"{len(run.checks) - len(bad)} checks ok" + (f", NOT OK: {'; '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
