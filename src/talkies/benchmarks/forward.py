"""One forward of a DiT with random weights: its inputs, its parts, its time and its peak.

S rows, K inputs, N outputs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from talkies.attention import registry as attention
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import Peak, median_of, peak, synchronize
from talkies.h3.config import DiTConfig
from talkies.h3.packing import PackedCondition, PackedLayout, build_layout, concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.kernels import select
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation, build_table
from talkies.model.runner import BlockRunner
from talkies.model.weights import build_dit
from talkies.placement.quantize import QuantizeConfig, placer

RELEASED = DiTConfig()
TINY = DiTConfig(
    hidden_size=96,
    num_layers=2,
    num_refiner_layers=1,
    num_attention_heads=4,
    attention_head_dim=32,
    ffn_dim=160,
    in_channels=4,
    audio_in_channels=8,
    text_dim=48,
    freq_dim=16,
    time_embed_hidden_dim=64,
    time_embed_dim=48,
    rope_freq_dim=4,
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one request: ``audio_latents`` a channel, two channels; video and ``conditions`` in latents."""

    text: int
    audio_latents: int
    frames: int
    height: int
    width: int
    conditions: tuple[PackedCondition, ...] = ()

    def layout(self) -> PackedLayout:
        return build_layout(
            text_tags=torch.ones(self.text, dtype=torch.long),
            latent_frames=self.frames,
            latent_height=self.height,
            latent_width=self.width,
            audio_latents=self.audio_latents,
            patch_size=(1, 2, 2),
            conditions=self.conditions,
        )


# 30 text, 696 audio and 58,032 video rows: 209 frames (8.7 s) of 1152x832.
FULL = Shape(text=30, audio_latents=348, frames=62, height=52, width=72)
# 124 frames of 672x384, the small request of co-batching: 9,761 rows.
SMALL = Shape(text=30, audio_latents=207, frames=37, height=24, width=42)
CHECKS = (
    Shape(text=7, audio_latents=5, frames=2, height=6, width=10),
    Shape(text=30, audio_latents=20, frames=7, height=16, width=24),
    Shape(text=61, audio_latents=48, frames=12, height=26, width=34),
)
SMOKE = Shape(text=9, audio_latents=11, frames=7, height=8, width=12)


@dataclass(frozen=True)
class Inputs:
    """What one forward eats, on its device, with the modulation of one step in the middle of a run."""

    layout: PackedLayout
    video: Tensor
    audio: Tensor
    text: Tensor
    t_video: Tensor
    t_audio: Tensor
    modulation: StepModulation

    def to_float(self) -> Inputs:
        m = self.modulation
        return replace(
            self, text=self.text.float(), modulation=replace(m, params=m.params.float(), output=m.output.float())
        )


def make_inputs(source: RandomDiT, shapes: Sequence[Shape], device: torch.device, dtype: torch.dtype) -> Inputs:
    """Random rows of one request, or of several in one forward."""
    layouts = [shape.layout() for shape in shapes]
    layout = layouts[0] if len(layouts) == 1 else concat_layouts(layouts)
    generator = torch.Generator(device).manual_seed(1)
    config = source.config

    def rows(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator, device=device)

    t_video, t_audio = torch.full((len(layouts),), 0.25), torch.full((len(layouts),), 0.5)
    plan = step_plan(layout, t_video, t_audio)
    return Inputs(
        layout=layout,
        video=rows(layout.num_video_rows, config.video_row_dim),
        audio=rows(layout.num_audio_rows, config.audio_in_channels),
        text=rows(layout.num_text, config.text_dim).to(dtype),
        t_video=t_video,
        t_audio=t_audio,
        modulation=build_table(source, [plan], device).step(0),
    )


class Step:
    """The part of a forward that a denoising step repeats; text and rotary tables are made once, as in a request."""

    def __init__(self, dit: PackedDiT, inputs: Inputs, blocks: BlockRunner | None = None) -> None:
        """``blocks`` is what runs the DiT's blocks where something is around them."""
        self.dit, self.inputs = dit, inputs
        self.blocks = blocks or dit.run_blocks
        self.view: RowView = dit.view(inputs.layout)
        self.refined = dit.refine_text(inputs.text, inputs.layout.text_documents)

    def warm_up(self) -> None:
        """One block and what surrounds the blocks: kernels compile, plans are made, memory is there."""
        x_SD = self.blocks(self.embed(), self.view, self.inputs.modulation, 0, 1)
        self.dit.project(x_SD, self.inputs.layout, self.inputs.modulation)

    def embed(self) -> Tensor:
        return self.dit.embed(self.inputs.video, self.inputs.audio, self.refined, self.inputs.layout)

    def __call__(self) -> tuple[Tensor, Tensor]:
        x_SD = self.blocks(self.embed(), self.view, self.inputs.modulation)
        return self.dit.project(x_SD, self.inputs.layout, self.inputs.modulation)


def make_dit(
    source: RandomDiT,
    device: torch.device,
    dtype: torch.dtype,
    *,
    attend: str,
    kernels: str,
    quantize: QuantizeConfig | None = None,
) -> PackedDiT:
    """Ours without AdaLN projections, each tensor drawn, placed and dropped in turn."""
    ops = select.create(kernels)
    backend = attention.create(attend, ops)
    place = placer(quantize or QuantizeConfig(), source.config, ops, device)
    return build_dit(source, attend=backend, text_attend=attention.create("sdpa"), ops=ops, adaln=False, place=place)


@dataclass(frozen=True)
class Measured:
    """Median seconds of a step, its device peak, and the outputs of the last run as float32 on the CPU."""

    seconds: float
    peak: Peak
    outputs: list[Tensor]


@torch.inference_mode()
def measured(step: Step, device: torch.device, *, repeats: int) -> Measured:
    """Warms up with one block, then runs the step ``repeats`` times."""
    step.warm_up()
    outputs: list[tuple[Tensor, Tensor]] = []

    def once() -> None:
        outputs[:] = [step()]

    with peak(device) as seen:
        seconds = median_of(once, device, repeats=repeats, warmups=0)
    return Measured(seconds, seen, [x.float().cpu() for x in outputs[0]])


@torch.inference_mode()
def host_seconds(step: Step, device: torch.device, *, repeats: int = 5) -> float:
    """What the host needs to launch one step, the device being busy with it or not."""
    step.warm_up()
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def relative(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """||got - want|| / ||want|| over all of them; NaN when anything is not finite."""
    if not all(bool(g.isfinite().all()) for g in got):
        return math.nan
    above = sum(float((g.double() - w.double().to(g.device)).square().sum()) for g, w in zip(got, want, strict=True))
    return math.sqrt(above / sum(float(w.double().square().sum()) for w in want))
