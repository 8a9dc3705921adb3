"""One forward of a DiT with random weights: its inputs, its parts, its time and its peak.

S rows, K inputs, N outputs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.attention import registry as attention
from talkies.benchmarks.random_dit import QK_NORM, RandomDiT
from talkies.benchmarks.timing import Peak, median_of, peak, synchronize
from talkies.kernels import select
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.fp8_linear import scaled_mm
from talkies.kernels.select import Ops
from talkies.model.block import RowView
from talkies.model.config import DiTConfig
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation, build_table
from talkies.model.packing import PackedLayout, build_layout, concat_layouts
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
    """Sizes of one request: ``audio_latents`` a channel, two channels; video in latents."""

    text: int
    audio_latents: int
    frames: int
    height: int
    width: int

    def layout(self) -> PackedLayout:
        return build_layout(
            text_tags=torch.ones(self.text, dtype=torch.long),
            latent_frames=self.frames,
            latent_height=self.height,
            latent_width=self.width,
            audio_latents=self.audio_latents,
            patch_size=(1, 2, 2),
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
    plan = layout.step_plan(t_video, t_audio)
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

    def __init__(self, dit: PackedDiT, inputs: Inputs) -> None:
        self.dit, self.inputs = dit, inputs
        self.view: RowView = dit.view(inputs.layout)
        self.refined = dit.refine_text(inputs.text, inputs.layout.text_documents)

    def warm_up(self) -> None:
        """One block and what surrounds the blocks: kernels compile, plans are made, memory is there."""
        x_SD = self.dit.run_blocks(self.embed(), self.view, self.inputs.modulation, 0, 1)
        self.dit.project(x_SD, self.inputs.layout, self.inputs.modulation)

    def embed(self) -> Tensor:
        return self.dit.embed(self.inputs.video, self.inputs.audio, self.refined, self.inputs.layout)

    def __call__(self) -> tuple[Tensor, Tensor]:
        x_SD = self.dit.run_blocks(self.embed(), self.view, self.inputs.modulation)
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


# The floor: the very products and the attention, alone.

LINEARS = ("qkv", "out", "up", "down")


def linear_sizes(config: DiTConfig) -> dict[str, tuple[int, int]]:
    """``(K, N)`` of each product of a block."""
    d, inner, ffn = config.hidden_size, config.inner_dim, config.ffn_dim
    return {"qkv": (d, 3 * inner), "out": (inner, d), "up": (d, 2 * ffn), "down": (ffn, d)}


def floor_runs(
    config: DiTConfig,
    num_rows: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    fast: bool | None,
    attend: Callable[[], object] | None = None,
) -> list[tuple[str, Callable[[], object]]]:
    """Each product of a block and ``attend`` between them, on random data, in the order of a block.

    ``fast`` ``None``: in ``dtype``. Otherwise in e4m3 with that accumulation; operands are quantised beforehand.
    """
    runs: list[tuple[str, Callable[[], object]]] = []
    ops = select.create(select.automatic(device))
    for name, (k, n) in linear_sizes(config).items():
        x = torch.randn(num_rows, k, device=device, dtype=dtype)
        weight = torch.randn(n, k, device=device, dtype=dtype) * k**-0.5
        if fast is None:
            runs.append((name, _linear(x, weight)))
        else:
            rows, columns = ops.quantize_rows(x), ops.quantize_rows(weight)
            runs.append((name, _scaled(rows, columns, fast)))
            del x, weight
    if attend is not None:
        runs.insert(1, ("attention", attend))
    return runs


def projection_runs(
    config: DiTConfig, layout: PackedLayout, device: torch.device
) -> list[tuple[str, Callable[[], object]]]:
    """The products before and after the blocks, float32 as in every checkpoint, on random data."""
    sizes = (
        ("video", layout.num_video_rows, config.video_row_dim),
        ("audio", layout.num_audio_rows, config.audio_in_channels),
    )
    runs: list[tuple[str, Callable[[], object]]] = []
    for name, rows, width in sizes:
        for label, k, n in ((f"{name} in", width, config.hidden_size), (f"{name} out", config.hidden_size, width)):
            x, weight = torch.randn(rows, k, device=device), torch.randn(n, k, device=device) * k**-0.5
            runs.append((label, _linear(x, weight)))
    return runs


class FloorPass:
    """What no forward of ``num_blocks`` blocks can do without, one after the other; ``around`` once a pass."""

    def __init__(
        self,
        runs: Sequence[tuple[str, Callable[[], object]]],
        num_blocks: int,
        around: Sequence[tuple[str, Callable[[], object]]] = (),
    ) -> None:
        self.runs, self.num_blocks, self.around = runs, num_blocks, around
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def __call__(self) -> None:
        for _, run in self.around:
            run()
        for _ in range(self.num_blocks):
            for name, run in self.runs:
                if not torch.cuda.is_available():
                    run()
                    continue
                start, stop = _timed(run, torch.device("cuda"))
                self._marks.append((name, start, stop))

    def of_a_block(self) -> dict[str, float]:
        """Mean seconds of each run over all passes; empty on a CPU. Call it when the device is done."""
        seconds: dict[str, list[float]] = {}
        for name, start, stop in self._marks:
            seconds.setdefault(name, []).append(start.elapsed_time(stop) / 1e3)
        return {name: statistics.fmean(values) for name, values in seconds.items()}


def in_turn(
    first: Callable[[], object], second: Callable[[], object], device: torch.device, *, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of two runs of some length, one after the other without a break, ``repeats`` times.

    A card at its power limit clocks by its temperature and by what it did a second ago: two things are comparable
    only where both see the same card.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    marks = []
    for _ in range(repeats):
        for kept, run in zip(seconds, (first, second), strict=True):
            marks.append((kept, *_timed(run, device)))
    synchronize(device)
    for kept, start, stop in marks:
        kept.append(start.elapsed_time(stop) / 1e3 if isinstance(start, torch.cuda.Event) else stop - start)
    return seconds


def _timed(run: Callable[[], object], device: torch.device) -> tuple:
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return began, time.perf_counter()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    return start, stop


def _linear(x: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: F.linear(x, weight)


def _scaled(x: Fp8Rows, weight: Fp8Rows, fast: bool) -> Callable[[], object]:
    if x.device.type != "cuda":
        return lambda: scaled_mm.fp8_linear(x, weight.data, weight.scale)
    return lambda: scaled_mm.scaled_mm(x, weight.data, weight.scale, fast=fast)


def chained(
    runs: Sequence[tuple[str, Callable[[], object]]], device: torch.device, *, repeats: int, warmups: int = 2
) -> dict[str, float]:
    """Median seconds of each, run one after another in turn, so that all of them see a card that is busy and warm."""
    if device.type != "cuda":
        return {name: median_of(run, device, repeats=repeats) for name, run in runs}
    for _ in range(warmups):
        for _, run in runs:
            run()
    seconds: dict[str, list[float]] = {name: [] for name, _ in runs}
    marks = []
    for _ in range(repeats):
        for name, run in runs:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            marks.append((name, start, stop))
    synchronize(device)
    for name, start, stop in marks:
        seconds[name].append(start.elapsed_time(stop) / 1e3)
    return {name: statistics.median(values) for name, values in seconds.items()}


def attention_runs(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, names: Sequence[str], ops: Ops
) -> Iterator[tuple[str, Callable[[], object]]]:
    """``(name, run)`` of each backend on the q, k, v of one block, and of what the model adds around some of them.

    Queries and keys are normed and turned as a block's are: how peaked the scores are shows in the time of a kernel.

    ``fa3+strided`` reads q, k, v where the fused projection left them; ``fa3-fp8+kernel`` is the e4m3 kernel alone.
    """
    strided = _normed(config, num_rows, device, dtype, ops)
    q, k, v = (x.contiguous() for x in strided)
    for name in names:
        attend = attention.create(name, ops)
        yield name, _attend(attend, q, k, v)
        if name == "fa3":
            yield "fa3+strided", _attend(attend, *strided)
        if name == "fa3-fp8":
            yield "fa3-fp8+kernel", _fp8_kernel(attend, q, k, v, ops)


def _normed(
    config: DiTConfig, num_rows: int, device: torch.device, dtype: torch.dtype, ops: Ops
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v [S, N, H] where one projection leaves them."""
    heads, head_dim = config.num_attention_heads, config.attention_head_dim
    qkv = torch.randn(num_rows, 3, heads, head_dim, device=device, dtype=dtype)
    norms = (0.1 * torch.randn(2, head_dim, device=device) + QK_NORM).to(dtype)
    theta = torch.randn(num_rows, config.num_angles, device=device)
    return ops.qk_norm_rope(qkv, *norms, theta.cos().to(dtype), theta.sin().to(dtype), eps=config.qk_norm_eps)


def _attend(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    return lambda: attend(q, k, v, None)


def _fp8_kernel(attend: attention.Trimmed, q: Tensor, k: Tensor, v: Tensor, ops: Ops) -> Callable[[], object]:
    from talkies.attention import flash3

    x = flash3.quantize(q, k, v, None, ops)
    kernel = flash3.Flash3(flash3.load())
    scales = {"q_descale": x.q_descale_BN, "k_descale": x.k_descale_BN, "v_descale": x.v_descale_BN}
    return lambda: kernel(x.q_SNH, x.k_SNH, x.v_SNH, None, **scales)


# Where the time of a forward goes.

CATEGORIES = (
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("matmul", ("gemm", "nvjet", "cutlass", "xmma", "cublas", "scaled_mm", "matmul", "splitk")),
)


IDLE = "idle between kernels"


def breakdown(step: Step, num_blocks: int) -> dict[str, float]:
    """Seconds a block of every GPU kernel, by name, from a trace of ``num_blocks`` blocks; and of none (``IDLE``).

    Of a step that has run before: nothing is warmed up here, so the card is as warm as it was left.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode():
        x = step.embed()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
            step.dit.run_blocks(x, step.view, step.inputs.modulation, 0, num_blocks)
            torch.cuda.synchronize()
    seconds: dict[str, float] = {}
    for event in trace.key_averages():
        total = getattr(event, "self_device_time_total", 0.0)
        if total:
            seconds[event.key] = seconds.get(event.key, 0.0) + total / 1e6 / num_blocks
    spans = sorted((e.time_range.start, e.time_range.end) for e in trace.events() if e.device_type == DeviceType.CUDA)
    idle, until = 0.0, spans[0][0]
    for start, stop in spans:
        idle += max(0.0, start - until)
        until = max(until, stop)
    seconds[IDLE] = idle / 1e6 / num_blocks
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def around_blocks(step: Step, device: torch.device) -> dict[str, float]:
    """Median seconds of what a step does before and after its blocks."""
    with torch.inference_mode():
        x = step.embed()
        runs = [
            ("embed", step.embed),
            ("project", lambda: step.dit.project(x, step.inputs.layout, step.inputs.modulation)),
        ]
        return chained(runs, device, repeats=5)


def category(kernel: str) -> str:
    """``attention``, ``matmul``, the name of one of our kernels, ``idle``, or ``other``."""
    if kernel == IDLE:
        return "idle"
    lowered = kernel.lower()
    for name, words in CATEGORIES:
        if any(word in lowered for word in words):
            return name
    return kernel if lowered.endswith("_kernel") and " " not in kernel and "::" not in kernel else "other"
