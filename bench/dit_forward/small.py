"""Small forwards: what the host needs to launch them, with and without CUDA graphs, and where a device is full.

Parts of bench/dit_forward. ``small``: full-size requests of 672x384, co-batched. ``steps``: whole denoising steps of
the embedded checkpoint's shape at its default clip. ``saturation``: forwards of shorter clips and of more and more
copies of one clip, each a document of its own: the point where the device is full, from all of them and as the warm-up
finds it, which knows nothing below one clip.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

import talkies
from bench.dit_forward.run import Run
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import free, synchronize
from talkies.capacity.cost import MEASURED_S, OVERHEAD_SHARE, CostModel, saturation_rows, saturation_samples
from talkies.h3.config import DiTConfig
from talkies.h3.packing import concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.model.dit import PackedDiT
from talkies.model.modulation import JointRuns, build_table, join_modulations
from talkies.model.runner import BlockRunner
from talkies.model.weights import read_config
from talkies.placement.apply import runner_of
from talkies.placement.graphs.recorder import CudaRecorder
from talkies.placement.graphs.replay import MAX_BYTES, Graphs, is_small
from talkies.placement.modulation_feed import ModulationFeed, pinned
from talkies.sampling.euler import euler_steps
from talkies.sampling.schedule import build_dual

NUM_SIGMAS = 20  # the embedded checkpoint's
# Its default clip (56 frames of 112x64, 675 rows) and its shortest one (22 frames).
CLIP = fw.Shape(text=13, audio_latents=93, frames=17, height=8, width=14)
SHORTEST = fw.Shape(text=13, audio_latents=37, frames=7, height=8, width=14)
# Full width at the same lengths, 512x256: 1,000 and 2,392 rows.
WIDE_SHORTEST = fw.Shape(text=30, audio_latents=37, frames=7, height=16, width=32)
WIDE_CLIP = fw.Shape(text=30, audio_latents=93, frames=17, height=16, width=32)
WIDE_BLOCKS = 4
# Below one clip: 89, 283 and 465 rows; 306, 724 and 1,534.
BELOW_CLIP = (
    fw.Shape(text=13, audio_latents=10, frames=2, height=8, width=14),
    SHORTEST,
    fw.Shape(text=13, audio_latents=58, frames=12, height=8, width=14),
)
BELOW_WIDE_CLIP = (
    fw.Shape(text=30, audio_latents=10, frames=2, height=16, width=32),
    fw.Shape(text=30, audio_latents=27, frames=5, height=16, width=32),
    fw.Shape(text=30, audio_latents=48, frames=11, height=16, width=32),
)
TOLERANCE = 0.2
NEARLY = 1 / (1 + OVERHEAD_SHARE)  # of the most rows a second
GRAPH_BYTES = 8 << 30


def embedded_config() -> DiTConfig:
    folder = Path(talkies.__file__).parent / "assets" / "h3-tiny" / "transformer"
    return read_config(folder)


def part_small(run: Run) -> None:
    """Four small requests in one forward against one by one, and what the host needs to launch a forward."""
    source = run.source
    run.trusted(run.best())
    dit = fw.make_dit(source, run.device, run.dtype, attend=run.best(), kernels=run.kernels)
    shape = run.shape if run.shape is fw.SMOKE else fw.SMALL
    seconds = {}
    for count in (1, 2, 4):
        inputs = fw.make_inputs(source, [shape] * count, run.device, run.dtype)
        with torch.inference_mode():
            step = fw.Step(dit, inputs)
        found = fw.measured(step, run.device, repeats=run.repeats)
        seconds[count] = found.seconds
        run.metric(f"small_{count}_s", found.seconds)
        run.metric(f"small_{count}_rows_per_s", inputs.layout.num_rows / found.seconds, "rows/s")
        run.metric(f"small_{count}_host_ms", fw.host_seconds(step, run.device) * 1e3, "ms")
    run.metric("small_4_throughput_gain", 4 * seconds[1] / seconds[4], "x")
    tiny = fw.make_inputs(source, [fw.CHECKS[0]], run.device, run.dtype)
    with torch.inference_mode():
        step = fw.Step(dit, tiny)
    run.metric("tiny_forward_ms", fw.measured(step, run.device, repeats=3).seconds * 1e3, "ms")
    run.metric("tiny_host_ms", fw.host_seconds(step, run.device) * 1e3, "ms")


class Steps:
    """Whole steps of ``count`` equal requests in one forward, as the engine does them: each has a feed of its own."""

    def __init__(
        self, dit: PackedDiT, blocks: BlockRunner, source: RandomDiT, shape: fw.Shape, count: int, run: Run
    ) -> None:
        self.blocks = blocks
        self.dit, self.count, self.index = dit, count, 0
        layouts = [shape.layout() for _ in range(count)]
        self.layout = layouts[0] if count == 1 else concat_layouts(layouts)
        self.schedule = build_dual(NUM_SIGMAS, video_shift=3.0, audio_shift=2.0)
        steps = zip(self.schedule.t_video, self.schedule.t_audio, strict=True)
        table = build_table(source, [step_plan(layouts[0], v, a) for v, a in steps], run.device)
        table = pinned(table) if run.on_gpu else table
        self.feeds = [ModulationFeed(table, run.device) for _ in range(count)]
        inputs = fw.make_inputs(source, [shape] * count, run.device, run.dtype)
        self.videos = list(inputs.video.chunk(count))
        self.audios = list(inputs.audio.chunk(count))
        self.view = dit.view(self.layout)
        self.refined = dit.refine_text(inputs.text, self.layout.text_documents)
        self.runs: JointRuns = {}
        self.stages: dict[str, list[float]] = {}

    def __call__(self) -> tuple[Tensor, ...]:
        """One step of all; after the last one it begins again."""
        marks = [time.perf_counter()]
        each = [feed.step(self.index) for feed in self.feeds]
        modulation = each[0] if self.count == 1 else join_modulations(each, self.runs)
        marks.append(time.perf_counter())
        video = self.videos[0] if self.count == 1 else torch.cat(self.videos)
        audio = self.audios[0] if self.count == 1 else torch.cat(self.audios)
        x = self.dit.embed(video, audio, self.refined, self.layout)
        marks.append(time.perf_counter())
        x = self.blocks(x, self.view, modulation)
        marks.append(time.perf_counter())
        video, audio = self.dit.project(x, self.layout, modulation)
        marks.append(time.perf_counter())
        step = self.schedule.step(self.index)
        moved = euler_steps(
            [*self.videos, *self.audios],
            [*video.chunk(self.count), *audio.chunk(self.count)],
            [step.video] * self.count + [step.audio] * self.count,
        )
        self.videos, self.audios = list(moved[: self.count]), list(moved[self.count :])
        marks.append(time.perf_counter())
        for name, began, ended in zip(("feed", "embed", "blocks", "project", "euler"), marks, marks[1:], strict=False):
            self.stages.setdefault(name, []).append(ended - began)
        self.index = (self.index + 1) % self.schedule.num_forwards
        return (*self.videos, *self.audios)


def part_steps(run: Run) -> None:
    config, shape = (fw.TINY, fw.SMOKE) if run.shape is fw.SMOKE else (embedded_config(), CLIP)
    source = RandomDiT(config, run.device, run.dtype)
    repeats = 3 if run.shape is fw.SMOKE else 60
    for count in (1, 2, 4):
        ends = {}
        for label in ("eager", "graph") if run.on_gpu else ("eager",):
            with torch.inference_mode():
                dit, blocks, graphs = _dit(run, source, graphs=label == "graph")
                steps = Steps(dit, blocks, source, shape, count, run)
                begin = _steps_timed(run, f"steps_{count}_{label}", steps, repeats)
                ends[label] = begin
            if graphs is not None:
                run.metric(f"steps_{count}_graphs_mib", graphs.held_bytes / 2**20, "MiB")
                run.check(f"steps_{count}_replayed", graphs.replays >= repeats, f"{graphs.replays} replays")
        if len(ends) == 2:
            same = all(torch.equal(a, b) for a, b in zip(ends["eager"], ends["graph"], strict=True))
            run.check(f"steps_{count}_graph_equals_eager", same, "six steps bit-equal")
            if not same:
                run.withdraw(f"steps_{count}_graph_", "it does not equal eager")
    if run.on_gpu:
        host = run.metrics.get("steps_1_graph_host_ms", float("inf"))
        run.check("steps_host_within_1_ms", host <= 1.0, f"{host:.3f} ms of host work a step")


def _dit(
    run: Run, source: RandomDiT, *, graphs: bool, max_bytes: int = MAX_BYTES
) -> tuple[PackedDiT, BlockRunner, Graphs | None]:
    run.trusted(run.best())
    dit = fw.make_dit(source, run.device, run.dtype, attend=run.best(), kernels=run.kernels)
    made = Graphs(CudaRecorder(run.device), max_bytes=max_bytes) if graphs else None
    return dit, runner_of(dit, graphs=made).blocks, made


def _steps_timed(run: Run, name: str, steps: Steps, repeats: int) -> tuple[Tensor, ...]:
    """``host_ms`` launch to launch of one step, ``ms`` a step when they follow each other. Returns the state after six
    steps; the second of a shape records, where graphs are on."""
    firsts = []
    for _ in range(6):
        synchronize(run.device)
        began = time.perf_counter()
        steps()
        synchronize(run.device)
        firsts.append(time.perf_counter() - began)
    kept = tuple(x.clone() for x in (*steps.videos, *steps.audios))
    run.metric(f"{name}_second_ms", firsts[1] * 1e3, "ms, synchronised; where graphs are on it records one")
    for _ in range(steps.schedule.num_forwards):
        steps()  # every shape of the schedule has come twice
    steps.stages.clear()
    host = []
    for _ in range(repeats):
        synchronize(run.device)
        began = time.perf_counter()
        steps()
        host.append(time.perf_counter() - began)
    run.metric(f"{name}_host_ms", statistics.median(host) * 1e3, "ms")
    parts = {key: statistics.median(values) * 1e3 for key, values in steps.stages.items()}
    run.say("    host: " + ", ".join(f"{key} {value:.3f}" for key, value in parts.items()) + " ms")
    for key, value in parts.items():
        run.metrics[f"{name}_host_{key}_ms"] = value
    synchronize(run.device)
    began = time.perf_counter()
    for _ in range(repeats):
        steps()
    synchronize(run.device)
    seconds = (time.perf_counter() - began) / repeats
    run.metric(f"{name}_ms", seconds * 1e3, "ms a step, one after another")
    run.metric(f"{name}_rows_per_s", steps.layout.num_rows / seconds, "rows/s")
    return kept


# Where a device is full.


def part_saturation(run: Run) -> None:
    if run.shape is fw.SMOKE:
        cases = [("tiny", fw.TINY, fw.SMOKE, fw.CHECKS[0], (fw.CHECKS[0],), (1, 2, 3))]
    else:
        wide = replace(fw.RELEASED, num_layers=WIDE_BLOCKS)
        counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
        cases = [
            ("embedded", embedded_config(), CLIP, SHORTEST, BELOW_CLIP, counts),
            ("wide", wide, WIDE_CLIP, WIDE_SHORTEST, BELOW_WIDE_CLIP, counts[:8]),
        ]
    for label, config, clip, shortest, below, counts in cases:
        _saturation(run, label, config, clip, shortest, below, counts)
        free(run.device)


def _saturation(
    run: Run,
    label: str,
    config: DiTConfig,
    clip: fw.Shape,
    shortest: fw.Shape,
    below: Sequence[fw.Shape],
    counts: Sequence[int],
) -> None:
    source = RandomDiT(config, run.device, run.dtype)
    # Room for every forward: it is the device that is to be full, not the memory that an engine leaves to graphs.
    dit, blocks, _ = _dit(run, source, graphs=run.on_gpu, max_bytes=GRAPH_BYTES)
    clip_rows = clip.layout().num_rows
    run.say(f"  {label}: a clip of {clip_rows} rows is small: {is_small(config, (clip_rows,))}")
    two_lengths = [_timed(run, dit, blocks, source, [shape]) for shape in (shortest, clip)]
    fitted = CostModel.fit(two_lengths, pixel_s=0.0, begin_s=0.0).max_step_rows
    # Times of their own, since the warm-up's must not prove themselves, but taken in turn: a host that changes its
    # speed is no error of what is judged here. All twice, as a warm-up does.
    passes: tuple[dict[int, float], dict[int, float]] = ({}, {})
    smaller: dict[int, float] = {}
    for shape in (*below, *below):
        rows, seconds = _timed(run, dit, blocks, source, [shape])
        smaller[rows] = min(seconds, smaller.get(rows, seconds))
    for count in (*counts, *counts):
        if run.on_gpu and run.clock.left_s < 10:
            run.notes.append(f"saturation {label}: no time from {count} copies on")
            break
        for taken in passes:
            rows, seconds = _timed(run, dit, blocks, source, [clip] * count)
            taken[rows] = min(seconds, taken.get(rows, seconds))
    warm_up, samples = (sorted(taken.items()) for taken in (passes[0], smaller | passes[1]))
    for rows, seconds in warm_up:
        run.metrics[f"saturation_{label}_{rows}_rows_warm_up_ms"] = seconds * 1e3
    for rows, seconds in samples:
        run.metrics[f"saturation_{label}_{rows}_rows_ms"] = seconds * 1e3
        clips, speed = rows / clip_rows, rows / seconds / 1e6
        run.say(f"    {clips:6.2f} clips {rows:7d} rows {seconds * 1e3:9.3f} ms {speed:8.3f} M rows/s")
    measured, predicted = saturation_rows(samples), saturation_rows(_warm_up_samples(warm_up))
    run.metric(f"saturation_{label}_measured_rows", measured, "rows, from all samples")
    run.metric(f"saturation_{label}_read_rows", _read(samples), f"rows, where its speed is {NEARLY:.0%} of its best")
    run.metric(f"saturation_{label}_predicted_rows", predicted, "rows, from other times, those that a warm-up takes")
    run.metric(f"saturation_{label}_fitted_rows", fitted, "rows, from two lengths of one clip (no co-batching)")
    # A forward has one clip at least: a device that is full below it is full at one clip for a warm-up.
    wanted = max(measured, clip_rows)
    run.metric(f"saturation_{label}_smallest_rows", samples[0][0], "rows, the smallest forward timed")
    run.metric(f"saturation_{label}_ratio", predicted / wanted, "predicted over measured (one clip at least)")
    if run.on_gpu:
        good = abs(predicted / wanted - 1) <= TOLERANCE
        run.check(f"saturation_{label}_within_20_percent", good, f"{predicted} predicted, {wanted} measured or a clip")
        run.check(f"saturation_{label}_not_at_the_edge", measured > samples[0][0], "a smaller forward was timed")


def _warm_up_samples(samples: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those of a pass that a warm-up takes."""
    one = samples[0][0]
    by_count = {sample[0] // one: sample for sample in samples}
    most = max(count for count in by_count if count.bit_count() == 1)
    return list(saturation_samples(by_count.__getitem__, most))


def _read(samples: Sequence[tuple[int, float]]) -> float:
    """Rows from which on a forward is ``NEARLY`` as fast a row as any of ``samples``, read off them with no model."""
    wanted = NEARLY * max(rows / seconds for rows, seconds in samples)
    speeds = [(rows, rows / seconds) for rows, seconds in samples]
    if speeds[0][1] >= wanted:
        return speeds[0][0]
    (a, slow), (b, fast) = next(pair for pair in pairwise(speeds) if pair[1][1] >= wanted)
    return round(a * (b / a) ** ((wanted - slow) / (fast - slow)))


@torch.inference_mode()
def _timed(
    run: Run, dit: PackedDiT, blocks: BlockRunner, source: RandomDiT, shapes: Sequence[fw.Shape]
) -> tuple[int, float]:
    """(rows, seconds) of a forward as the warm-up times it: launched alone, until the device is done; the best."""
    step: Callable[[], object] = fw.Step(dit, fw.make_inputs(source, shapes, run.device, run.dtype), blocks)
    best, spent = float("inf"), 0.0
    for i in range(4 if run.shape is fw.SMOKE else 34):
        synchronize(run.device)
        began = time.perf_counter()
        step()
        synchronize(run.device)
        took = time.perf_counter() - began
        if i >= 2:
            best, spent = min(best, took), spent + took
        if spent >= 2 * MEASURED_S and i >= 5:
            break
    assert isinstance(step, fw.Step)
    return step.inputs.layout.num_rows, best
