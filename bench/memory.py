"""Streaming, its plan and its budget on a GPU, with random full-size weights made on the device.

    python -m bench.memory                              # every part that this machine can run, within --limit-s
    python -m bench.memory --parts bf16,fp8             # some
    python -m bench.memory --smoke                      # every part at tiny sizes on a CPU

    rates   what the planner measures of this machine
    bf16    a forward at 58,758, 20,424 and 6,105 rows with 0 .. all blocks resident: time and peak beside the plan's,
            chunks, outputs bit-equal to resident
    fp8     the same with e4m3 linears
    dlo     two ranks, one host copy, slices gathered, against resident; needs two GPUs (two processes on a CPU)
    e2e     text encoder, 3 forwards, video decode under --vram-budget, as planned; the allocator's cap is set

Writes <out>/streaming-<device>.json after every part; every figure is printed when it is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.report import RESULTS, commit, write_result
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, Clock, free
from talkies.kernels import select
from talkies.model.chunking import Chunking
from talkies.model.config import DiTConfig
from talkies.model.dit import PackedDiT
from talkies.placement import footprint as fp
from talkies.placement import measure, timing
from talkies.placement.flat import FlatLayout, parameters_of
from talkies.placement.footprint import Sizes, Work
from talkies.placement.hardware import H200, Hardware
from talkies.placement.host import HostBuffer
from talkies.placement.layerwise import (
    LayerwiseConfig,
    PinnedFetch,
    Streamed,
    rebind,
    streamed_positions,
    to_host,
    weights_of,
)
from talkies.placement.quantize import QuantizeConfig

PARTS = ("rates", "bf16", "fp8", "dlo", "e2e")
NEEDS_S = {"rates": 10, "bf16": 240, "fp8": 200, "dlo": 150, "e2e": 240}
MIDDLE = fw.Shape(text=30, audio_latents=207, frames=37, height=36, width=60)
SHORT = fw.Shape(text=30, audio_latents=207, frames=37, height=18, width=34)
SMOKE_CONFIG = DiTConfig(**{f: getattr(fw.TINY, f) for f in fw.TINY.__dataclass_fields__} | {"num_layers": 6})
SMOKE_SHAPES = (
    fw.SMOKE,
    fw.Shape(text=5, audio_latents=7, frames=7, height=6, width=8),
    fw.Shape(text=5, audio_latents=7, frames=7, height=4, width=6),
)
LONG_ROWS = 40_000
TOLERANCE = 0.08  # of a predicted peak
CHUNKINGS = {"mlp8k": Chunking(mlp_rows=8192), "mlp8k_heads2": Chunking(mlp_rows=8192, head_groups=2)}


@dataclass
class Run:
    device: torch.device
    config: DiTConfig
    shapes: Sequence[fw.Shape]
    smoke: bool
    kernels: str
    attention: str
    vram_budget: int
    ram_bytes: int
    points: Sequence[int]
    repeats: int
    out: Path
    clock: Clock
    hardware: Hardware = H200
    metrics: dict[str, float] = field(default_factory=dict)
    peer: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def sizes(self) -> Sizes:
        return Sizes(dit=self.config)

    def say(self, text: str) -> None:
        print(f"[{self.clock.spent_s:5.0f} s] {text}", flush=True)

    def metric(self, name: str, value: float, unit: str = "s") -> None:
        self.metrics[name] = float(value)
        self.say(f"  {name:<44} {value:>12.6g} {unit}")

    def check(self, name: str, good: bool, detail: str = "") -> None:
        self.checks[name] = bool(good)
        self.say(f"  {'ok' if good else 'NOT OK':<6} {name} {detail}")


class Step(fw.Step):
    """As the engine runs it: the embedded rows stay with the caller, for the step cache."""

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        x_SD = self.embed()
        out_SD = self.dit.run_blocks(x_SD, self.view, self.inputs.modulation)
        return self.dit.project(out_SD, self.inputs.layout, self.inputs.modulation)


class Blocks:
    """The blocks of one DiT, all of them in host buffers, arranged again and again."""

    def __init__(self, dit: PackedDiT, device: torch.device) -> None:
        self.blocks, self.device = list(dit.blocks), device
        self.layouts = [FlatLayout.of(parameters_of(block)) for block in self.blocks]
        self.buffers: list[HostBuffer] = [to_host(block, pin=device.type == "cuda") for block in self.blocks]
        self.streamed: Streamed | None = None

    def arrange(self, config: LayerwiseConfig) -> None:
        self.reset()
        positions = streamed_positions(len(self.blocks), config)
        for i, block in enumerate(self.blocks):
            if i not in positions:
                device = {n: p.to(self.device) for n, p in parameters_of(block).items()}
                rebind(block, self.layouts[i], list(device.values()))
        if positions:
            fetch = PinnedFetch([self.buffers[i] for i in positions])
            fetch.close = lambda: None  # type: ignore[method-assign]
            weights = [weights_of(self.blocks[i]) for i in positions]
            self.streamed = Streamed(weights, fetch, self.device, config.slots)

    def reset(self) -> None:
        """All away."""
        if self.streamed is not None:
            self.streamed.close()
            self.streamed = None
        for block, layout, buffer in zip(self.blocks, self.layouts, self.buffers, strict=True):
            rebind(block, layout, list(layout.views(buffer.flat).values()))
        free(self.device)

    def close(self) -> None:
        self.reset()
        for buffer in self.buffers:
            buffer.close()


def part_rates(run: Run) -> None:
    if run.on_gpu:
        run.hardware = measure.rates(run.device)
    h = run.hardware
    run.metric("h2d_gb_per_s", h.h2d_bytes_per_s / 1e9, "GB/s" if run.on_gpu else "GB/s (preset)")
    run.metric("matmul_tflops", h.matmul_flops / 1e12, "TFLOP/s")
    run.metric("fp8_tflops", (h.fp8_flops or 0) / 1e12, "TFLOP/s")
    run.metric("attention_tflops", h.attention_flops / 1e12, "TFLOP/s (sdpa)")


def part_bf16(run: Run) -> None:
    _curve(run, "", QuantizeConfig())


def part_fp8(run: Run) -> None:
    _curve(run, "fp8_", QuantizeConfig(method="fp8"))


def _curve(run: Run, prefix: str, quantize: QuantizeConfig) -> None:
    dtype = torch.bfloat16
    source = RandomDiT(run.config, run.device, dtype)
    with torch.inference_mode():
        inputs = [fw.make_inputs(source, [shape], run.device, dtype) for shape in run.shapes]
        dit = fw.make_dit(source, run.device, dtype, attend=run.attention, kernels=run.kernels, quantize=quantize)
        steps = [Step(dit, i) for i in inputs]
    # The refiner has done its work, as in an engine.
    for block in dit.token_refiner.blocks:
        to_host(block, pin=False)
    blocks = Blocks(dit, run.device)
    run.say(f"  {sum(b.flat.numel() for b in blocks.buffers) / GIB:.1f} GiB of weights in host memory")
    number = len(blocks.blocks)
    try:
        for step in steps:
            resident: fw.Measured | None = None
            for count in (number, *[p for p in run.points if p < number]):
                if run.on_gpu and run.clock.left_s < 30:
                    run.say("  no time left for more points")
                    return
                config = LayerwiseConfig(resident=count)
                blocks.arrange(config)
                found = _point(run, prefix, step, quantize, config, Chunking(), f"r{count}")
                if resident is None:
                    resident = found
                else:
                    _compare(run, prefix, step, resident, found, count, full=step is steps[0])
        blocks.arrange(LayerwiseConfig())
        for name, chunking in CHUNKINGS.items() if run.on_gpu else ():
            dit.use_chunking(chunking)
            found = _point(run, prefix, steps[0], quantize, LayerwiseConfig(), chunking, f"r0_{name}")
            run.metrics[f"{prefix}streamed_{name}_s"] = found.seconds
        if run.on_gpu and f"{prefix}streamed_peak_gib" in run.metrics:
            least = min(v for k, v in run.metrics.items() if k.startswith(f"{prefix}peak_gib_{_rows(steps[0])}_r0"))
            limit = 5.5 if prefix else 6.5
            run.check(f"{prefix}a streamed forward within {limit} GiB", least <= limit, f"{least:.2f} GiB")
    finally:
        blocks.close()


def _rows(step: fw.Step) -> int:
    return step.inputs.layout.num_rows


def _point(
    run: Run,
    prefix: str,
    step: fw.Step,
    quantize: QuantizeConfig,
    config: LayerwiseConfig,
    chunking: Chunking,
    name: str,
) -> fw.Measured:
    if _rows(step) < LONG_ROWS:
        with torch.inference_mode():
            step()  # what a first pass waits for is a thousandth of a long one
    found = fw.measured(step, run.device, repeats=run.repeats)
    key = f"{_rows(step)}_{name}"
    run.metric(f"{prefix}s_{key}", found.seconds)
    run.metric(f"{prefix}peak_gib_{key}", found.peak.gib, "GiB")
    fp8 = quantize.method == "fp8"
    block_bytes = fp.block_bytes(run.config, quantize, 2)
    seconds = timing.forward_seconds(
        run.sizes, _rows(step), run.hardware, config, block_bytes, fp8=fp8, fp8_attention="fp8" in run.attention
    )
    weights = fp.dit_weights(run.sizes, quantize, config)
    forward = fp.forward_bytes(run.sizes, _rows(step), chunking, fp8=fp8, fp8_attention="fp8" in run.attention)
    predicted = weights.fixed + weights.visiting + forward + fp.held_bytes(run.sizes, _work(step)) + fp.WORKSPACE
    run.metric(f"{prefix}plan_s_{key}", seconds, "s predicted")
    run.metric(f"{prefix}plan_peak_gib_{key}", predicted / GIB, "GiB predicted")
    if run.on_gpu:
        off = predicted / found.peak.most - 1
        run.check(f"{prefix}plan's peak at {key} within 8 %", abs(off) <= TOLERANCE, f"{off:+.1%}")
    return found


def _compare(
    run: Run, prefix: str, step: fw.Step, resident: fw.Measured, found: fw.Measured, count: int, *, full: bool
) -> None:
    equal = all(torch.equal(a, b) for a, b in zip(found.outputs, resident.outputs, strict=True))
    run.check(f"{prefix}{_rows(step)} rows, {count} resident: bit-equal to resident", equal)
    if count == 0 and full:
        run.metrics[f"{prefix}resident_s"] = resident.seconds
        run.metrics[f"{prefix}streamed_s"] = found.seconds
        run.metrics[f"{prefix}streamed_peak_gib"] = found.peak.gib
        if run.on_gpu:
            ratio = found.seconds / resident.seconds
            run.check(f"{prefix}streamed within 1.02 of resident", ratio <= 1.02, f"{ratio:.4f}")


def _work(step: fw.Step) -> Work:
    layout = step.inputs.layout
    return Work(
        rows=layout.num_rows,
        video_rows=layout.num_video_rows,
        audio_rows=layout.num_audio_rows,
        text_tokens=layout.num_text,
        latent_frames=62,
        width=1152,
        height=832,
        num_frames=209,
        num_samples=278_400,
        num_forwards=49,
    )


def part_dlo(run: Run) -> None:
    from bench import memory_dlo

    if run.on_gpu and torch.cuda.device_count() < 2:
        run.say("  left out: one GPU")
        return
    free(run.device)
    for name, value in memory_dlo.measure(run.config, run.shapes[0], run.device, run.kernels, run.attention).items():
        if name.startswith("check "):
            run.check(name.removeprefix("check "), bool(value))
        else:
            run.metric(name, value, "")


def part_e2e(run: Run) -> None:
    from bench import memory_e2e

    memory_e2e.run(run)


def write(run: Run) -> None:
    name = torch.cuda.get_device_name(run.device).replace(" ", "-") if run.on_gpu else "cpu"
    shape = {"rows": [s.layout().num_rows for s in run.shapes], "blocks": run.config.num_layers}
    shape |= {"attention": run.attention, "kernels": run.kernels, "vram_budget_gib": run.vram_budget / GIB}
    bench = "streaming-smoke" if run.smoke else "streaming"
    _take_over(run, run.out / f"{bench}-{name}.json")
    path = write_result(bench, name, shape=shape, metrics=run.metrics, peer=run.peer, checks=run.checks, folder=run.out)
    run.say(f"  written to {path}")


def _take_over(run: Run, path: Path) -> None:
    """What other calls at this commit found: parts may be run one at a time."""
    try:
        old = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if old.get("commit") == commit() and old.get("torch") == torch.__version__:
        run.metrics = old["metrics"] | run.metrics
        run.checks = old["checks"] | run.checks


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--points", default="0,10,20,30,40", help="resident blocks; all of them is always measured")
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
    device = torch.device("cpu" if a.smoke else a.device)
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
            globals()[f"part_{part}"](run)
        except Exception:
            traceback.print_exc()
            run.check(f"{part} ran to its end", False)
        free(run.device)
        write(run)
    bad = [name for name, good in run.checks.items() if not good]
    run.say(f"{len(run.checks) - len(bad)} checks ok" + (f", NOT OK: {'; '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
