"""The curve of resident blocks: seconds and peak of a forward beside the plan's. Started by ``bench.memory``."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.memory.run import Run
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, free
from talkies.capacity import seconds as timing
from talkies.capacity import stage_bytes as fp
from talkies.capacity import weight_bytes as wb
from talkies.capacity.demand import Demand
from talkies.capacity.plan import chunk_cost
from talkies.capacity.sizes import Sizes
from talkies.h3.config import DiTConfig
from talkies.h3.geometry import Limits, geometry_of
from talkies.model.chunking import Chunking
from talkies.model.dit import PackedDiT
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.stream.flat import FlatLayout, parameters_of
from talkies.placement.stream.host_memory import HostBuffer
from talkies.placement.stream.layerwise import (
    LayerwiseConfig,
    PinnedFetch,
    Streamed,
    rebind,
    streamed_positions,
    to_host,
    weights_of,
)

LONG_ROWS = 40_000
TOLERANCE = 0.08  # of a predicted peak
CHUNKINGS = {
    "mlp8k_heads2": Chunking(mlp_rows=8192, head_groups=2),
    "mlp8k_heads4": Chunking(mlp_rows=8192, head_groups=4),
}
SMOKE_CHUNKINGS = {"mlp64_heads2": Chunking(mlp_rows=64, head_groups=2)}
SLOWER = 1.02  # than resident: allowed
GIB_LIMITS = {"": 6.5, "fp8_": 5.5}  # of a streamed forward of the longest clip


class Step(fw.Step):
    """As the engine runs it: the embedded rows stay with the caller, for the step cache."""

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        x_SD = self.embed()
        out_SD = self.dit.run_blocks(x_SD, self.view, self.inputs.modulation)
        return self.dit.project(out_SD, self.inputs.layout, self.inputs.modulation)


class _Kept(PinnedFetch):
    """Of buffers that the next arrangement needs, too."""

    def close(self) -> None:
        pass


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
            fetch = _Kept([self.buffers[i] for i in positions])
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


def curve(run: Run, prefix: str, quantize: QuantizeConfig) -> None:
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
    whole: fw.Measured | None = None  # the first step, resident
    try:
        for step in steps:
            resident: fw.Measured | None = None
            # A long forward is of one speed at all points: a few show it.
            points = [p for p in run.points if p < number][:: 4 if _rows(step) > LONG_ROWS else 1]
            for count in (number, *points):
                if run.on_gpu and run.clock.left_s < 30:
                    run.say("  no time left for more points")
                    return
                config = LayerwiseConfig(resident=count)
                blocks.arrange(config)
                found = _point(run, prefix, step, quantize, config, Chunking(), f"r{count}")
                if resident is None:
                    resident = found
                    whole = whole or found
                    continue
                what = f"{prefix}{_rows(step)} rows, {count} resident"
                if not _equal(run, what, found, resident):
                    _withdraw(run, prefix, f"{_rows(step)}_r{count}")
                    continue
                if count == 0 and step is steps[0]:
                    _summary(run, prefix, resident, found)
        assert whole is not None
        blocks.arrange(LayerwiseConfig())
        small = []
        for name, chunking in (CHUNKINGS if run.on_gpu else SMOKE_CHUNKINGS).items():
            dit.use_chunking(chunking)
            found = _point(run, prefix, steps[0], quantize, LayerwiseConfig(), chunking, f"r0_{name}")
            if not _equal(run, f"{prefix}{_rows(steps[0])} rows, 0 resident, {name}", found, whole):
                _withdraw(run, prefix, f"{_rows(steps[0])}_r0_{name}")
                continue
            run.metrics[f"{prefix}streamed_{name}_s"] = found.seconds
            if found.peak.gib <= GIB_LIMITS[prefix]:
                small.append(found.seconds / whole.seconds)
        if run.on_gpu:
            what = f"{prefix}streamed within {GIB_LIMITS[prefix]} GiB and {SLOWER} of resident"
            run.check(what, min(small, default=9.0) <= SLOWER, ", ".join(f"{ratio:.4f}" for ratio in small))
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
    block_bytes = wb.block_bytes(run.config, quantize, 2)
    seconds = timing.forward_seconds(
        run.sizes, _rows(step), run.hardware, config, block_bytes, fp8=fp8, fp8_attention="fp8" in run.attention
    )
    seconds *= chunk_cost(chunking)
    predicted = predicted_peak(run.config, step, quantize, config, chunking, run.attention)
    run.metric(f"{prefix}plan_s_{key}", seconds, "s predicted")
    run.metric(f"{prefix}plan_peak_gib_{key}", predicted / GIB, "GiB predicted")
    if run.on_gpu:
        off = predicted / found.peak.most - 1
        run.check(f"{prefix}plan's peak at {key} within 8 %", abs(off) <= TOLERANCE, f"{off:+.1%}")
    return found


def predicted_peak(
    config: DiTConfig,
    step: fw.Step,
    quantize: QuantizeConfig,
    layerwise: LayerwiseConfig,
    chunking: Chunking,
    attention: str,
) -> int:
    """The planner's bytes of a step whose refiner is away; ``config`` may be a shard's."""
    sizes, rows = Sizes(dit=config), _rows(step)
    weights = wb.dit_weights(sizes, quantize, layerwise)
    fp8 = quantize.method == "fp8"
    forward = fp.forward_bytes(sizes, rows, chunking, fp8=fp8, fp8_attention="fp8" in attention)
    return (
        weights.fixed
        + weights.visiting
        + forward
        + fp.held_bytes(sizes, _demand(step), whole_modulation=WHOLE_BYTES)
        + fp.WORKSPACE
    )


def _withdraw(run: Run, prefix: str, key: str) -> None:
    run.withdraw(f"{prefix}s_{key}", f"{prefix}peak_gib_{key}")


def _equal(run: Run, what: str, found: fw.Measured, want: fw.Measured) -> bool:
    equal = all(torch.equal(a, b) for a, b in zip(found.outputs, want.outputs, strict=True))
    run.check(f"{what}: bit-equal to resident", equal)
    return equal


def _summary(run: Run, prefix: str, resident: fw.Measured, streamed: fw.Measured) -> None:
    """Of the longest clip, whole."""
    run.metrics[f"{prefix}resident_s"] = resident.seconds
    run.metrics[f"{prefix}streamed_s"] = streamed.seconds
    run.metrics[f"{prefix}streamed_peak_gib"] = streamed.peak.gib
    if run.on_gpu:
        ratio = streamed.seconds / resident.seconds
        run.check(f"{prefix}streamed within {SLOWER} of resident", ratio <= SLOWER, f"{ratio:.4f}")


def _demand(step: fw.Step) -> Demand:
    """With the rows of this step, one a latent frame, whatever clip they are of."""
    layout = step.inputs.layout
    target = replace(
        geometry_of(1152, 832, 209, Limits()),
        latent_frames=layout.num_video_rows,
        latent_height=2,
        latent_width=2,
        audio_latents=layout.num_audio_rows // 2,
    )
    return Demand(target=target, prompt_tokens=layout.num_text, num_forwards=49)
