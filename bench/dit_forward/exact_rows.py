"""Forwards of which some rows are exact: with keyframes, with references, and the first and last of a run.

Called by part ``fp8`` of bench/dit_forward with its DiT. Where the attention approximates, queries of condition rows
are computed in bf16 (docs/architecture.md); each such forward is timed as the engine runs it, and once more with
nothing exact, so that the price of exactness is a figure.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.dit_forward.run import Run
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.engine.pipeline.state import exact_conditions
from talkies.h3.packing import AudioCondition, PackedCondition, VisualCondition
from talkies.kernels import select
from talkies.model.dit import PackedDiT

CLIP_LATENTS = 5  # latent frames of one clip of the video VAE


def conditions_of(shape: fw.Shape) -> dict[str, tuple[PackedCondition, ...]]:
    """A first and a last frame; two square pictures and a sound of half the clip's length."""
    height, width = shape.height, shape.width
    frames = (
        VisualCondition(kind="keyframe-first", latent_height=height, latent_width=width),
        VisualCondition(kind="keyframe-last", latent_height=height, latent_width=width),
    )
    square = min(height, width) // 2 * 2
    picture = VisualCondition(kind="image", latent_height=square, latent_width=square)
    return {
        "keyframes": frames,
        "references": (picture, picture, AudioCondition(audio_latents=shape.audio_latents // 2)),
    }


def part_exact_rows(run: Run, dit: PackedDiT, attention: str) -> None:
    attend = registry.create(attention, select.create(run.kernels))
    exactness = attend.exactness
    if exactness is None:
        run.notes.append(f"no forwards with exact rows: {attention} approximates nothing")
        return
    _check(run, attention)
    for label, conditions in conditions_of(run.shape).items():
        shape = _fitting(replace(run.shape, conditions=conditions), attend.max_rows)
        inputs = fw.make_inputs(run.source, [shape], run.device, run.dtype)
        with torch.inference_mode():
            step = fw.Step(dit, inputs)
        nothing_exact = fw.measured(step, run.device, repeats=1)
        step.view = exact_conditions(step.view, inputs.layout, exactness)
        _report(run, label, step, nothing_exact)
    with torch.inference_mode():
        step = fw.Step(dit, run.inputs())
    step.view = step.view.with_exact([(0, run.inputs().layout.num_rows)])
    _report(run, "edge_step", step, None)


def _fitting(shape: fw.Shape, max_rows: int | None) -> fw.Shape:
    """The longest clip whose rows, conditions included, the backend takes: a clip of the VAE less at a time."""
    while max_rows is not None and shape.layout().num_rows > max_rows and shape.frames > CLIP_LATENTS:
        shape = replace(shape, frames=shape.frames - CLIP_LATENTS)
    return shape


def _report(run: Run, label: str, step: fw.Step, nothing_exact: fw.Measured | None) -> None:
    found = fw.measured(step, run.device, repeats=1)
    run.require(f"fp8_{label}_finite", all(bool(x.isfinite().all()) for x in found.outputs), "outputs are finite")
    run.metric(f"fp8_{label}_rows", step.inputs.layout.num_rows, "rows")
    run.metric(f"fp8_{label}_exact_rows", _num_exact(step), "rows whose queries are exact")
    run.metric(f"fp8_{label}_s", found.seconds)
    run.metric(f"fp8_{label}_peak_gib", found.peak.gib, "GiB")
    if nothing_exact is not None:
        run.metric(f"fp8_{label}_nothing_exact_s", nothing_exact.seconds)


def _num_exact(step: fw.Step) -> int:
    documents = step.view.documents
    assert documents is not None
    return sum(stop - start for start, stop in documents.exact)


def _check(run: Run, attention: str) -> None:
    """Two full-width blocks with conditions: a wholly exact forward is as near float32 as the reference in bf16, and
    one with exact conditions is nearer to it on those rows than one without.

    The products stay in bf16 here, so that the attention alone is judged.
    """
    narrow = replace(run.config, num_layers=2)
    source, wide = (RandomDiT(narrow, run.device, run.dtype, widen=widen) for widen in (False, True))
    shape = replace(fw.CHECKS[1], conditions=conditions_of(fw.CHECKS[1])["keyframes"])
    inputs = fw.make_inputs(source, [shape], run.device, run.dtype)
    exact = fw.make_dit(wide, run.device, torch.float32, attend="sdpa", kernels="reference")
    plain = fw.make_dit(source, run.device, run.dtype, attend="sdpa", kernels="reference")
    dit = fw.make_dit(source, run.device, run.dtype, attend=attention, kernels=run.kernels)
    with torch.inference_mode():
        want = list(fw.Step(exact, inputs.to_float())())
        allowed = 1.2 * fw.relative(list(fw.Step(plain, inputs)()), want) + 1e-6
        step = fw.Step(dit, inputs)
        view = step.view
        nothing = list(step())
        step.view = view.with_exact([(0, inputs.layout.num_rows)])
        whole = fw.relative(list(step()), want)
        step.view = exact_conditions(view, inputs.layout, dit.attend.exactness)
        conditions = list(step())
    run.require("exact_rows_whole_forward", whole <= allowed, f"{whole:.2e} <= {allowed:.2e} from float32")
    rows = slice(0, inputs.layout.num_condition_video_rows)  # conditions come first
    near, far = (fw.relative([x[0][rows]], [want[0][rows]]) for x in (conditions, nothing))
    run.require("exact_rows_conditions", near < far, f"{near:.2e} exact, {far:.2e} not, from float32")
