"""``bf16`` and ``fp8`` of bench/dit_forward: our full-size forward, its peak, its error and where its time goes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.dit_forward.exact_rows import part_exact_rows
from bench.dit_forward.floor import beside_floor
from bench.dit_forward.run import FASTEST, FP8, Reported, Run
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks import trace as tr
from talkies.benchmarks.timing import GIB, peak
from talkies.h3.config import DiTConfig
from talkies.kernels import select
from talkies.model.chunking import WHOLE, Chunking


def part_bf16(run: Run) -> None:
    name = run.best()
    run.trusted(name)
    with peak(run.device) as load:
        dit = fw.make_dit(run.source, run.device, run.dtype, attend=name, kernels=run.kernels)
    run.metric("bf16_load_peak_gib", load.gib, "GiB")
    with torch.inference_mode():
        step = fw.Step(dit, run.inputs())
    found = fw.measured(step, run.device, repeats=1)
    run.require("bf16_finite", _finite(found), "outputs are finite")
    run.outputs["bf16"] = found.outputs
    seconds = beside_floor(run, "bf16", step, found, 1.02)
    run.metric("bf16_peak_gib", found.peak.gib, "GiB")
    run.metric("bf16_weights_gib", found.peak.start / GIB, "GiB")
    run.notes.append(f"bf16_s is with attention {name}, kernels {run.kernels}")
    with Reported(run, "bf16 breakdown"):
        _where(run, "bf16", step)
    for other in run.backends:
        # cudnn is what compiled diffusers runs; other exact ones differ by their kernel alone, which the floor times.
        exact = registry.create(other, select.create(run.kernels)).exactness is None
        if other == name or (run.on_gpu and exact and other != "cudnn"):
            continue
        if run.clock.left_s < 2 * seconds + 20 and run.on_gpu:
            run.notes.append(f"no time for attention {other}")
            continue
        with Reported(run, f"bf16 {other}"):
            run.trusted(other)
            dit.attend = registry.create(other, select.create(run.kernels))
            found = fw.measured(step, run.device, repeats=run.repeats if exact else 1)
            error = fw.relative(found.outputs, run.outputs["bf16"])
            limit = 0.05 if exact else 0.15
            run.require(f"bf16_{other}_agrees", error <= limit, f"{error:.2e} from {name}, at most {limit}")
            run.metric(f"bf16_{other}_s", found.seconds)
            run.metric(f"bf16_{other}_rel", error, f"to {name}")
            if other == "fa3-fp8":
                run.metric("fp8_attention_rel_err", error, "")
    dit.attend = registry.create(name, select.create(run.kernels))
    for label, chunking in MEMORY.items():
        if run.clock.left_s < 2 * seconds + 20 and run.on_gpu:
            run.notes.append(f"no time for memory setting {label}")
            continue
        with Reported(run, f"bf16 {label}"):
            dit.use_chunking(chunking(run.config))
            found = fw.measured(step, run.device, repeats=1)
            error = fw.relative(found.outputs, run.outputs["bf16"])
            run.require(f"bf16_{label}_agrees", error <= 0.05, f"{error:.2e} from whole")
            run.metric(f"bf16_{label}_s", found.seconds)
            run.metric(f"bf16_{label}_activations_gib", (found.peak.most - found.peak.start) / GIB, "GiB")
            run.metric(f"bf16_{label}_rel", error, "to whole")
    dit.use_chunking(WHOLE)


MEMORY: dict[str, Callable[[DiTConfig], Chunking]] = {
    "mlp8192": lambda c: Chunking(mlp_rows=8192),
    "mlp8192_heads4": lambda c: Chunking(mlp_rows=8192, head_groups=4),
}


def part_fp8(run: Run) -> None:
    fastest, exact = run.best(FASTEST), run.best()
    run.trusted("fp8", fastest)
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
    run.require("fp8_finite", _finite(found), "outputs are finite")
    run.outputs["fp8"] = found.outputs
    if "bf16" in run.outputs:
        error = fw.relative(found.outputs, run.outputs["bf16"])
        run.require("fp8_near_bf16", error <= MAX_FP8_ERROR, f"{error:.3f}, at most {MAX_FP8_ERROR}")
        run.metric("fp8_rel_err", error, "to bf16")
    seconds = beside_floor(run, "fp8", step, found, 1.08)
    run.metric("fp8_peak_gib", found.peak.gib, "GiB")
    run.notes.append(f"fp8_s is with attention {fastest}, kernels {run.kernels}")
    with Reported(run, "fp8 breakdown"):
        _where(run, "fp8", step)
    with Reported(run, "fp8 exact rows"):
        part_exact_rows(run, dit, fastest)
    if exact != fastest and run.clock.left_s > 2 * seconds + 20:
        with Reported(run, "fp8 products alone"):
            dit.attend = registry.create(exact, select.create(run.kernels))
            found = fw.measured(step, run.device, repeats=1)
            if "bf16" in run.outputs:
                error = fw.relative(found.outputs, run.outputs["bf16"])
                run.require("fp8_products_near_bf16", error <= MAX_FP8_ERROR, f"{error:.3f}, at most {MAX_FP8_ERROR}")
                run.metric("fp8_products_rel_err", error, "to bf16")
            run.metric("fp8_products_alone_s", found.seconds)


MAX_FP8_ERROR = 0.15  # of random weights, which forgive nothing


def _finite(found: fw.Measured) -> bool:
    return all(bool(x.isfinite().all()) for x in found.outputs)


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
