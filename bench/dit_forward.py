"""One forward of the full-size DiT against its floor and against diffusers, on random weights made on the device.

    python -m bench.dit_forward                     # every part, on a GPU, within --limit-s seconds
    python -m bench.dit_forward --parts floor,bf16  # some
    python -m bench.dit_forward --smoke             # every part that needs no GPU, tiny sizes, on a CPU

58,758 rows (30 text, 696 audio, 58,032 video: 8.7 s of 1152x832). The floor is the four products and the attention of
a block, alone, times the number of blocks, and the projections around them, run in turn with ours so that both see the
same warm card. Outputs are checked against float32 on two full-width blocks, and at full size against diffusers' model
with the same weights. A part that fails is reported and the others go on. Writes <out>/dit_forward-<device>.json after
every part.

    kernels    each fused op: time, bytes, share of the copy rate
    checks     ours (kernels, backends, fp8) and diffusers against float32 at full width, two blocks, three sizes
    floor      products in bf16 and e4m3, every attention backend that is there
    bf16       ours: time and peak of each backend, memory settings, where the time goes, fp8 attention's error
    fp8        ours: load peak, time, peak, error of products alone and of both, where the time goes
    diffusers  eager, its default attention
    compiled   diffusers with compiled blocks and cuDNN attention
    small      1, 2 and 4 requests of 672x384 x 124 frames in one forward; what the host needs to launch one
    steps      whole steps of the embedded checkpoint's default clip, 1, 2 and 4 in one forward: host and wall time,
               with CUDA graphs and without, equal bit for bit
    saturation rows from which on a forward's fixed cost is below 5 %: predicted as the engine does, and measured
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from bench.dit_forward_small import part_saturation, part_small, part_steps
from bench.report import device_name, write_result
from talkies.attention import registry
from talkies.benchmarks import floor as fl
from talkies.benchmarks import forward as fw
from talkies.benchmarks import kernels as kn
from talkies.benchmarks import trace as tr
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, Clock, chained, free, in_turn, median_of, peak
from talkies.kernels import select
from talkies.model import keys
from talkies.model.chunking import WHOLE, Chunking
from talkies.model.config import DiTConfig
from talkies.model.keys import Layout
from talkies.model.rope import inverse_frequencies
from talkies.model.weights import assign
from talkies.placement.quantize import QuantizeConfig

PARTS = ("kernels", "checks", "floor", "bf16", "fp8", "diffusers", "compiled", "small", "steps", "saturation")
# Seconds that a part needs on an H200 with all its repeats; one that does not fit any more is left out by name.
NEEDS_S = {
    "kernels": 10,
    "checks": 30,
    "floor": 15,
    "bf16": 95,
    "fp8": 70,
    "diffusers": 65,
    "compiled": 100,
    "small": 20,
    "steps": 20,
    "saturation": 40,
}
FP8 = QuantizeConfig(method="fp8")
EXACT = ("fa3", "cudnn", "sdpa")
FASTEST = ("fa3-fp8", *EXACT)


@dataclass
class Run:
    """What the parts share, and what they found."""

    device: torch.device
    dtype: torch.dtype
    config: DiTConfig
    shape: fw.Shape
    repeats: int
    kernels: str
    backends: list[str]
    out: Path
    clock: Clock
    metrics: dict[str, float] = field(default_factory=dict)
    peer: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # of full-size forwards, on the CPU
    kernel_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    inputs_: fw.Inputs | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def source(self) -> RandomDiT:
        return RandomDiT(self.config, self.device, self.dtype)

    def inputs(self) -> fw.Inputs:
        if self.inputs_ is None:
            self.inputs_ = fw.make_inputs(self.source, [self.shape], self.device, self.dtype)
        return self.inputs_

    def best(self, names: tuple[str, ...] = EXACT) -> str:
        """The fastest backend of ``names`` that is here; of exact ones when left out."""
        return next(name for name in names if name in self.backends)

    def say(self, text: str) -> None:
        print(f"[{self.clock.spent_s:5.0f} s] {text}", flush=True)

    def metric(self, name: str, value: float, unit: str = "s", *, peer: bool = False) -> None:
        (self.peer if peer else self.metrics)[name] = value
        self.say(f"  {name:<34} {value:>12.6g} {unit}")

    def check(self, name: str, good: bool, detail: str) -> None:
        self.checks[name] = bool(good)
        self.say(f"  {'ok' if good else 'NOT OK':<6} {name}: {detail}")


# kernels


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


# checks


def part_checks(run: Run) -> None:
    narrow = replace(run.config, num_layers=2)
    two = [fw.CHECKS[0], fw.CHECKS[1]]
    for label, shapes in (*((f"{i}", [shape]) for i, shape in enumerate(fw.CHECKS)), ("documents", two)):
        source = RandomDiT(narrow, run.device, run.dtype)
        wide = RandomDiT(narrow, run.device, run.dtype, widen=True)
        inputs = fw.make_inputs(source, shapes, run.device, run.dtype)
        exact = _outputs(fw.make_dit(wide, run.device, torch.float32, attend="sdpa", kernels="reference"), inputs, True)
        plain = _outputs(fw.make_dit(source, run.device, run.dtype, attend="sdpa", kernels="reference"), inputs)
        allowed = fw.relative(plain, exact)
        run.metric(f"check_{label}_reference_rel", allowed, "")
        for name in run.backends:
            with _reported(run, f"check_{label}_{name}"):
                dit = fw.make_dit(source, run.device, run.dtype, attend=name, kernels=run.kernels)
                got = _outputs(dit, inputs)
                error, limit = fw.relative(got, exact), 1.2 * allowed + 1e-6
                if registry.create(name, select.create(run.kernels)).exactness is not None:
                    limit = 0.15  # an approximation; its error at full size is a number of its own
                again = _outputs(dit, inputs)
                same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
                rows = inputs.layout.num_rows
                run.check(f"parity_{label}_{name}", error <= limit, f"{error:.2e} <= {limit:.2e}, {rows} rows")
                run.check(f"repeats_{label}_{name}", same, "two runs bit-equal")
                dit.use_chunking(Chunking(mlp_rows=256, head_groups=2))
                apart = fw.relative(_outputs(dit, inputs), got)
                run.check(f"chunked_{label}_{name}", apart <= limit, f"chunked differs by {apart:.2e}")
        with _reported(run, f"check_{label}_fp8"):
            name = run.best()
            dit = fw.make_dit(source, run.device, run.dtype, attend=name, kernels=run.kernels, quantize=FP8)
            fp8 = _outputs(dit, inputs)
            cpu = [x.float().cpu() for x in exact]
            run.check(f"parity_{label}_fp8", fw.relative(fp8, cpu) <= 0.15, f"{fw.relative(fp8, cpu):.2e} to float32")
            twin = fw.make_dit(source, run.device, run.dtype, attend="sdpa", kernels="reference", quantize=FP8)
            # The reference set multiplies the same e4m3 values in float32.
            between = fw.relative(fp8, _outputs(twin, inputs))
            run.check(f"emulation_{label}_fp8", between <= 0.05, f"{between:.2e} to the emulated product")
        if len(shapes) == 1:
            with _reported(run, f"check_{label}_diffusers"):
                theirs = _diffusers_outputs(diffusers_dit(source, run.device), inputs)
                error = fw.relative(theirs, exact)
                run.check(f"parity_{label}_diffusers", error <= 1.2 * allowed + 1e-6, f"{error:.2e} to float32")
        free(run.device)


@torch.inference_mode()
def _outputs(dit, inputs: fw.Inputs, exact: bool = False) -> list[torch.Tensor]:
    return list(fw.Step(dit, inputs.to_float() if exact else inputs)())


# floor


def part_floor(run: Run) -> None:
    num_rows = run.inputs().layout.num_rows
    ops = select.create(run.kernels)
    repeats = max(3, run.repeats)
    with _reported(run, "attention"):
        seconds: dict[str, float] = {}
        for name in run.backends:
            with _reported(run, f"attention {name}"), torch.inference_mode():
                runs = list(fl.attention_runs(run.config, num_rows, run.device, run.dtype, [name], ops))
                for label, value in chained(runs, run.device, repeats=repeats).items():
                    seconds[label] = value
                    run.metric(f"attention_{label}_ms", value * 1e3, "ms")
            free(run.device)
        run.kernel_seconds["attention alone"] = seconds
    for label in FLOORS:
        with _reported(run, f"products {label}"), torch.inference_mode():
            runs = _floor_runs(run, label)
            each = chained(runs, run.device, repeats=repeats, warmups=1)
            products = sum(value for key, value in each.items() if key != "attention")
            detail = " ".join(f"{key} {value * 1e3:.2f}" for key, value in each.items())
            flops = sum(2 * num_rows * k * n for k, n in fl.linear_sizes(run.config).values())
            run.say(f"  a block's {label}: {detail} ms, products {flops / products / 1e12:.0f} TFLOP/s")
            run.metric(f"products_{label}_ms", products * 1e3, "ms")
            run.metric(f"floor_{label}_s", run.config.num_layers * sum(each.values()))
            runs = each = None
        free(run.device)


# Accumulation of the e4m3 products; None for products in the block dtype.
FLOORS: dict[str, bool | None] = {"bf16": None, "fp8": True, "fp8_slow": False}


def _floor_runs(run: Run, label: str) -> list[tuple[str, Callable[[], object]]]:
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
    note = f"floor_{label}_s is with attention {name}, quantising not counted"
    run.notes += [] if note in run.notes else [note]
    return fl.floor_runs(run.config, num_rows, run.device, run.dtype, fast=FLOORS[label], attend=attend)


# ours


def part_bf16(run: Run) -> None:
    with peak(run.device) as load:
        name = run.best()
        dit = fw.make_dit(run.source, run.device, run.dtype, attend=name, kernels=run.kernels)
    run.metric("bf16_load_peak_gib", load.gib, "GiB")
    with torch.inference_mode():
        step = fw.Step(dit, run.inputs())
    found = fw.measured(step, run.device, repeats=1)
    seconds = _beside_floor(run, "bf16", step, found, 1.02)
    run.metric("bf16_peak_gib", found.peak.gib, "GiB")
    run.metric("bf16_weights_gib", found.peak.start / GIB, "GiB")
    run.notes.append(f"bf16_s is with attention {name}, kernels {run.kernels}")
    run.outputs["bf16"] = found.outputs
    run.check("bf16_finite", all(bool(x.isfinite().all()) for x in run.outputs["bf16"]), "outputs are finite")
    with _reported(run, "bf16 breakdown"):
        _where(run, "bf16", step)
    for other in run.backends:
        # The exact ones differ by their kernel alone, which the floor times; what approximates has an error to state.
        if other == name or (run.on_gpu and registry.create(other, select.create(run.kernels)).exactness is None):
            continue
        if run.clock.left_s < 2 * seconds + 20 and run.on_gpu:
            run.notes.append(f"no time for attention {other}")
            continue
        with _reported(run, f"bf16 {other}"):
            dit.attend = registry.create(other, select.create(run.kernels))
            found = fw.measured(step, run.device, repeats=1)
            run.metric(f"bf16_{other}_s", found.seconds)
            error = fw.relative(found.outputs, run.outputs["bf16"])
            run.metric(f"bf16_{other}_rel", error, f"to {name}")
            if other == "fa3-fp8":
                run.metric("fp8_attention_rel_err", error, "")
    dit.attend = registry.create(name, select.create(run.kernels))
    for label, chunking in MEMORY.items():
        if run.clock.left_s < 2 * seconds + 20 and run.on_gpu:
            run.notes.append(f"no time for memory setting {label}")
            continue
        with _reported(run, f"bf16 {label}"):
            dit.use_chunking(chunking(run.config))
            found = fw.measured(step, run.device, repeats=1)
            run.metric(f"bf16_{label}_s", found.seconds)
            run.metric(f"bf16_{label}_activations_gib", (found.peak.most - found.peak.start) / GIB, "GiB")
            error = fw.relative(found.outputs, run.outputs["bf16"])
            run.metric(f"bf16_{label}_rel", error, "to whole")
    dit.use_chunking(WHOLE)


MEMORY: dict[str, Callable[[DiTConfig], Chunking]] = {
    "mlp8192": lambda c: Chunking(mlp_rows=8192),
    "mlp8192_heads4": lambda c: Chunking(mlp_rows=8192, head_groups=4),
}


def part_fp8(run: Run) -> None:
    fastest, exact = run.best(FASTEST), run.best()
    with peak(run.device) as load:
        dit = fw.make_dit(run.source, run.device, run.dtype, attend=fastest, kernels=run.kernels, quantize=FP8)
    run.metric("fp8_load_peak_gib", load.gib, "GiB")
    finished = sum(p.nbytes for p in dit.parameters())
    block = sum(p.nbytes for p in dit.blocks[0].parameters()) * run.dtype.itemsize
    if run.on_gpu:
        good = load.most - load.start <= finished + block + (64 << 20)
        run.check("fp8_load_is_final_plus_a_block", good, f"{load.gib:.2f} GiB for {finished / GIB:.2f} finished")
    with torch.inference_mode():
        step = fw.Step(dit, run.inputs())
    found = fw.measured(step, run.device, repeats=1)
    seconds = _beside_floor(run, "fp8", step, found, 1.08)
    run.metric("fp8_peak_gib", found.peak.gib, "GiB")
    run.notes.append(f"fp8_s is with attention {fastest}, kernels {run.kernels}")
    run.outputs["fp8"] = found.outputs
    run.check("fp8_finite", all(bool(x.isfinite().all()) for x in run.outputs["fp8"]), "outputs are finite")
    if "bf16" in run.outputs:
        run.metric("fp8_rel_err", fw.relative(run.outputs["fp8"], run.outputs["bf16"]), "to bf16")
    with _reported(run, "fp8 breakdown"):
        _where(run, "fp8", step)
    if exact != fastest and run.clock.left_s > 2 * seconds + 20:
        with _reported(run, "fp8 products alone"):
            dit.attend = registry.create(exact, select.create(run.kernels))
            found = fw.measured(step, run.device, repeats=1)
            run.metric("fp8_products_alone_s", found.seconds)
            if "bf16" in run.outputs:
                error = fw.relative(found.outputs, run.outputs["bf16"])
                run.metric("fp8_products_rel_err", error, "to bf16")


@torch.inference_mode()
def _beside_floor(run: Run, label: str, step: fw.Step, first: fw.Measured, budget: float) -> float:
    """Forwards and floors in turn, the medians of both and their ratio. Returns the forward's seconds."""
    around = fl.projection_runs(run.config, run.inputs().layout, run.device)
    floor = fl.FloorPass(_floor_runs(run, label), run.config.num_layers, run.device, around)
    floors, forwards = in_turn(floor, step, run.device, repeats=3 if run.on_gpu else 1)
    run.say(f"  in turn: floors {_list(floors)} s, forwards {_list(forwards)} s, the first alone {first.seconds:.4f} s")
    for name, value in floor.of_a_block().items():
        run.metric(f"floor_{label}_{name}_ms", value * 1e3, "ms")
    seconds, least = statistics.median([first.seconds, *forwards]), statistics.median(floors)
    run.metric(f"{label}_s", seconds)
    run.metric(f"floor_{label}_s", least)
    ratio = statistics.median(forward / floor for floor, forward in zip(floors, forwards, strict=True))
    run.metric(f"{label}_over_floor", ratio, "x")
    if run.on_gpu:
        run.check(f"{label}_within_budget_of_floor", ratio <= budget, f"{ratio:.4f} x the floor, budget {budget}")
    return seconds


def _list(seconds: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in seconds)


def _where(run: Run, label: str, step: fw.Step) -> None:
    """The breakdown of a block, by category, beside the floor."""
    if not run.on_gpu:
        return
    # At once after the forwards, and all blocks: a card that has paused is faster.
    by_kernel = tr.breakdown(step, run.config.num_layers)
    run.kernel_seconds[label] = by_kernel
    by_category: dict[str, float] = {}
    for name, value in by_kernel.items():
        by_category[tr.category(name)] = by_category.get(tr.category(name), 0.0) + value
    total = sum(by_category.values())
    run.say(f"  a {label} block, {total * 1e3:.2f} ms of kernels:")
    for name, value in sorted(by_category.items(), key=lambda item: -item[1]):
        run.say(f"    {name:<34} {value * 1e3:8.3f} ms {value / total:6.1%}")
        run.metrics[f"{label}_block_{name}_ms"] = value * 1e3
    for name, value in tr.around_blocks(step, run.device).items():
        run.metric(f"{label}_{name}_ms", value * 1e3, "ms")
    for name, value in list(by_kernel.items())[:14]:
        run.say(f"      {value * 1e3:8.3f} ms  {name[:110]}")


def _cpu(tensors) -> list[torch.Tensor]:
    return [x.float().cpu() for x in tensors]


# the peer


def diffusers_dit(source: RandomDiT, device: torch.device):
    """Diffusers' model over the same weights, AdaLN projections included; nothing passes through the host."""
    from diffusers import MiniMaxH3Transformer3DModel

    with torch.device("meta"):
        model = MiniMaxH3Transformer3DModel(**asdict(source.config))
    for name, spec in source.specs.items():
        parts = keys.split(spec, source.tensor(name), Layout.PORT, source.config)
        assign(model, dict(zip(keys.file_keys(name, Layout.PORT), parts, strict=True)))
    model.rope.inv_freq = inverse_frequencies(source.config.rope_freq_dim, source.config.rope_theta).to(device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not left, left
    return model.eval().requires_grad_(False)


def _diffusers_step(model, inputs: fw.Inputs) -> Callable[[], list[torch.Tensor]]:
    layout, device = inputs.layout, inputs.video.device
    timestep, indices = layout.row_timesteps(inputs.t_video, inputs.t_audio)
    arguments = {
        "hidden_states": inputs.video[None],
        "audio_hidden_states": inputs.audio[None],
        "encoder_hidden_states": inputs.text[None],
        "timestep": timestep.to(device),
        "timestep_indices": indices.to(device),
        "token_tags": layout.tags.long().to(device),
        "position_ids": layout.positions.to(device),
        "video_indices": layout.video_indices.to(device),
        "audio_indices": layout.audio_indices.to(device),
        "text_indices": layout.text_indices.to(device),
    }

    def step() -> list[torch.Tensor]:
        out = model(**arguments)
        return [out.sample[0], out.audio_sample[0]]

    return step


@torch.inference_mode()
def _diffusers_outputs(model, inputs: fw.Inputs) -> list[torch.Tensor]:
    return _diffusers_step(model, inputs)()


def part_diffusers(run: Run) -> None:
    _peer(run, "eager", lambda model: None, run.repeats)


def part_compiled(run: Run) -> None:
    def prepare(model) -> None:
        if run.on_gpu:
            model.set_attention_backend("_native_cudnn")
        model.compile_repeated_blocks(fullgraph=True)

    _peer(run, "compiled", prepare, run.repeats)


def _peer(run: Run, label: str, prepare: Callable[[object], None], repeats: int) -> None:
    model = diffusers_dit(run.source, run.device)
    prepare(model)
    step = _diffusers_step(model, run.inputs())
    with torch.no_grad():  # inference tensors would be guarded on by the compiler
        outputs = _cpu(step())
        if run.clock.left_s < (repeats + 1) * 16 and run.on_gpu:
            repeats = 1
        with peak(run.device) as seen:
            seconds = median_of(step, run.device, repeats=repeats, warmups=0)
    run.metric(f"diffusers_{label}_s", seconds, peer=True)
    if label == "eager":
        run.metric("diffusers_peak_gib", seen.gib, "GiB", peer=True)
    if "bf16" in run.outputs:
        error = fw.relative(run.outputs["bf16"], outputs)
        run.metric(f"bf16_to_diffusers_{label}_rel", error, "")
        run.check(f"full_size_agrees_with_diffusers_{label}", error <= 0.05, f"{error:.2e} over every row")
    if "bf16_s" in run.metrics:
        run.metric(f"speedup_over_diffusers_{label}", seconds / run.metrics["bf16_s"], "x")


# the run

RUNS: dict[str, Callable[[Run], None]] = {"small": part_small, "steps": part_steps, "saturation": part_saturation}


class _reported:
    """A part, or a part of one: what it raises is printed and noted, and the rest goes on."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        where = "".join(traceback.format_exception(kind, error, trace)[-3:])
        self.run.notes.append(f"{self.name} failed: {type(error).__name__}: {str(error)[:300]}")
        self.run.say(f"  FAILED {self.name}\n{where}")
        return True


def write(run: Run) -> None:
    metrics = {k: v for k, v in run.metrics.items() if math.isfinite(v)}
    layout = run.inputs().layout
    shape = {
        "rows": layout.num_rows,
        "text": layout.num_text,
        "audio": layout.num_audio_rows,
        "video": layout.num_video_rows,
        "blocks": run.config.num_layers,
        "dtype": str(run.dtype).removeprefix("torch."),
        "kernels": run.kernels,
        "backends": run.backends,
        "repeats": run.repeats,
        "notes": run.notes,
    }
    name = device_name(run.device)
    path = write_result(
        "dit_forward", name, shape=shape, metrics=metrics, peer=run.peer, checks=run.checks, folder=run.out
    )
    details = {"kernel_seconds": run.kernel_seconds, "all_metrics": run.metrics}
    path.with_suffix(".details.json").write_text(json.dumps(details, indent=1) + "\n")


def backends_here(device: torch.device, dtype: torch.dtype, wanted: str | None) -> tuple[list[str], list[str]]:
    """Backends that can run, and why the others cannot."""
    machine = registry.Machine.of(device, dtype)
    names = list(registry.ATTENTION) if wanted is None else wanted.split(",")
    missing = {name: registry.why_not(name, machine) for name in names}
    return [n for n, why in missing.items() if why is None], [f"{n}: {why}" for n, why in missing.items() if why]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; implied without a GPU")
    parser.add_argument("--shape", choices=("full", "small"), default="full")
    parser.add_argument("--layers", type=int, help="blocks of the model; 50 when absent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", default="auto", help="auto, triton or reference")
    parser.add_argument("--attention", help="comma-separated backends; default every one that is there, but flex")
    parser.add_argument("--limit-s", type=float, default=540.0, help="parts that no longer fit are left out")
    parser.add_argument("--out", type=Path, default=None, help="folder of the JSON; default bench/results")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    device = torch.device(arguments.device)
    smoke = arguments.smoke or device.type == "cpu"
    dtype = torch.bfloat16
    config = fw.TINY if smoke else fw.RELEASED
    if arguments.layers:
        config = replace(config, num_layers=arguments.layers)
    shape = fw.SMOKE if smoke else {"full": fw.FULL, "small": fw.SMALL}[arguments.shape]
    kernels = select.automatic(device) if arguments.kernels == "auto" else arguments.kernels
    backends, missing = backends_here(device, dtype, arguments.attention)
    if arguments.attention is None:
        # Its dense form is a compiled kernel for a mask that one document does not need.
        backends = [name for name in backends if name != "flex"]
    from bench.report import RESULTS

    run = Run(
        device=device,
        dtype=dtype,
        config=config,
        shape=shape,
        repeats=1 if smoke else arguments.repeats,
        kernels=kernels,
        backends=backends,
        out=arguments.out or RESULTS,
        clock=Clock(arguments.limit_s),
        notes=[f"not here: {why}" for why in missing],
    )
    name = device_name(device)
    run.say(f"{name}, torch {torch.__version__}, {run.config.num_layers} blocks, kernels {kernels}, {backends}")
    for why in missing:
        run.say(f"  not here: {why}")
    if run.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    parts = arguments.parts.split(",")
    for part in [p for p in PARTS if p in parts]:
        if run.on_gpu and not smoke and run.clock.left_s < NEEDS_S[part]:
            run.say(f"{part}: left out, {run.clock.left_s:.0f} s are left and it needs about {NEEDS_S[part]}")
            run.notes.append(f"{part}: no time left")
            continue
        run.say(f"{part}:")
        with _reported(run, part):
            RUNS[part](run) if part in RUNS else globals()[f"part_{part}"](run)
        free(run.device)
        write(run)
    _summary(run)
    return 0 if all(run.checks.values()) else 1


def _summary(run: Run) -> None:
    print("\nsummary")
    for name in ("bf16_s", "floor_bf16_s", "bf16_over_floor", "fp8_s", "floor_fp8_s", "fp8_over_floor"):
        if name in run.metrics:
            print(f"  {name:<34} {run.metrics[name]:12.6g}")
    for name in ("bf16_peak_gib", "fp8_peak_gib", "fp8_rel_err", "fp8_products_rel_err", "fp8_attention_rel_err"):
        if name in run.metrics:
            print(f"  {name:<34} {run.metrics[name]:12.6g}")
    for name, value in run.peer.items():
        print(f"  {name:<34} {value:12.6g}")
    bad = [name for name, good in run.checks.items() if not good]
    print(f"  checks: {len(run.checks) - len(bad)} ok" + (f", NOT OK: {', '.join(bad)}" if bad else ""))
    for note in run.notes:
        print(f"  note: {note}")


if __name__ == "__main__":
    sys.exit(main())
