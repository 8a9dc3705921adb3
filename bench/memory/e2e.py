"""A whole clip's stages with random full-size weights under a budget: text encoder, DiT, video decoder.

The audio VAE is left out: its class is diffusers', which a GPU machine need not have. Started by ``bench.memory``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.memory.curve import Step
from bench.memory.run import Run
from bench.random_modules import TEXT, TINY_TEXT, TINY_VISION, VISION, drawn, text_model
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, free, synchronize
from talkies.capacity import planner
from talkies.capacity.demand import Demand
from talkies.capacity.plan import Plan, Wishes
from talkies.capacity.sizes import Sizes
from talkies.codecs.latents import LatentStats
from talkies.codecs.video.config import RELEASE, VideoVAEConfig
from talkies.codecs.video.vae import VideoVAE
from talkies.codecs.video.vit_decoder import ViTDecoder
from talkies.engine.load.place_components import place_dit
from talkies.engine.load.planning import cap
from talkies.h3.geometry import Geometry
from talkies.kernels import select
from talkies.placement.components import Residences, Residency, move_buffers, stream_component
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.stream.layerwise import LayerwiseConfig, move
from talkies.sampling.euler import euler_step
from talkies.sampling.schedule import Step as SigmaStep

NUM_FORWARDS = 3
PROMPT_TOKENS = 512
TINY_VAE = {"decoder_num_layers": 4, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16}


def run(run: Run) -> None:
    """Prints each stage as it ends; the last check is the promise."""
    device, shape = run.device, run.shapes[0]
    sizes = replace(run.sizes, audio_parameters=1)
    demand = _demand(shape)
    wishes, machine = _wishes(run, sizes)
    plan = planner.make_plan(sizes, demand, machine, wishes)
    run.say(f"  plan for {run.vram_budget / GIB:.1f} GiB: {plan.summary()}")
    free(device)
    cap(device, run.vram_budget if run.on_gpu else None)
    began = time.perf_counter()
    residency = Residency()
    try:
        with torch.inference_mode(False), torch.no_grad():
            text = _text(run, plan.residences.text, residency)
            run.say(f"  text encoder made, {_memory(device)}")
            dit = _dit(run, plan, residency)
            run.say(f"  DiT made, {_memory(device)}")
            video = _video(run, plan.residences.video, residency)
        run.metric("e2e_make_s", time.perf_counter() - began)
        run.metric("e2e_host_gib", residency.host_bytes / GIB, "GiB")
        stages = {stage.name: stage for stage in plan.stages}
        peaks = [torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0]  # of loading

        def stage(name: str, group: str, work: Callable[[], Any]) -> Any:
            residency.enter(group)  # before the peak is reset: what leaves is the stage's before
            synchronize(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            start = time.perf_counter()
            result = work()
            synchronize(device)
            run.metric(f"e2e_{name}_s", time.perf_counter() - start)
            peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
            peaks.append(peak)
            run.metric(f"e2e_{name}_peak_gib", peak / GIB, "GiB")
            run.metric(f"e2e_{name}_plan_peak_gib", stages[name].peak_bytes / GIB, "GiB predicted")
            return result

        with torch.inference_mode():
            states = stage("encode", "text", lambda: _encode(run, text))
            _require(run, "e2e text states are finite", states)
            state = stage("pack", "dit.refiner", lambda: _pack(run, dit, states))
            latents = stage("denoise", "dit", lambda: _denoise(state))
            _require(run, "e2e latents are finite", latents)
            frames = stage("decode", "video", lambda: _decode(run, video, latents))
        run.metric("e2e_frames", frames, "frames")
        if device.type == "cuda":
            most, reserved = max(peaks), torch.cuda.max_memory_reserved(device)
            run.metric("e2e_peak_gib", most / GIB, "GiB")
            run.metric("e2e_reserved_gib", reserved / GIB, "GiB (last stage)")
            run.metric("e2e_plan_peak_gib", plan.peak_bytes / GIB, "GiB predicted")
            run.check("e2e peak under the budget", most <= run.vram_budget, f"{most / GIB:.2f} GiB")
            off = plan.peak_bytes / most - 1
            run.check("e2e plan's peak within 8 %", abs(off) <= 0.08, f"{off:+.1%}")
    finally:
        residency.close()
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)


def _require(run: Run, name: str, value: torch.Tensor) -> None:
    """The check, and without it none of this part's figures."""
    good = bool(value.isfinite().all())
    run.check(name, good)
    if not good:
        run.withdraw(*(figure for figure in run.metrics if figure.startswith("e2e_")))
        raise RuntimeError(f"not so: {name}")


def _wishes(run: Run, sizes: Sizes) -> tuple[Wishes, Any]:
    if not run.on_gpu:  # tiny sizes fit any budget: stream all the same
        residences = Residences(dit=LayerwiseConfig(resident=1), text="streamed", video="streamed")
        return Wishes(residences=residences), run.hardware
    # Stated, so that the plan counts what attention in e4m3 keeps beside q, k and v.
    wishes = Wishes(fp8_attention="fp8" in run.attention)
    return wishes, replace(run.hardware.with_budgets(run.vram_budget, None), ram_bytes=run.ram_bytes)


def _demand(shape: fw.Shape) -> Demand:
    """As if the whole prompt went into the rows, of which the steps here take the first ones."""
    num_frames = (shape.frames - 2) // 5 * 17 + 5
    target = Geometry(
        width=16 * shape.width,
        height=16 * shape.height,
        num_frames=num_frames,
        fps=24,
        latent_frames=shape.frames,
        latent_height=shape.height,
        latent_width=shape.width,
        patch_size=2,
        audio_latents=shape.audio_latents,
        num_samples=800 * shape.audio_latents,
        sample_rate_hz=32_000,
    )
    return Demand(target=target, prompt_tokens=PROMPT_TOKENS, num_forwards=NUM_FORWARDS)


def _text(run: Run, where: str, residency: Residency) -> Any:
    text, vision = (TEXT, VISION) if not run.smoke else (TINY_TEXT, TINY_VISION)
    model, prepare = text_model(text, vision, run.device), drawn(run.device)
    if where == "resident":
        prepare(model, None)
        move(model, run.device)
        return model
    stacks = [list(model.language_model.layers), list(model.visual.blocks)] if where == "streamed" else []
    residency.add("text", stream_component(model, stacks, run.device, prepare=prepare))
    move_buffers(model, run.device)
    return model


def _dit(run: Run, plan: Plan, residency: Residency) -> Any:
    ops = select.create(run.kernels)
    attend = registry.create(run.attention, ops)
    dit = place_dit(
        RandomDiT(run.config, run.device, torch.bfloat16),
        run.device,
        residency,
        group="dit",
        attend=attend,
        text_attend=attend if attend.exactness is None else registry.create("sdpa"),
        ops=ops,
        quantize=QuantizeConfig(),
        layerwise=plan.residences.dit,
    )
    dit.use_chunking(plan.chunking)
    return dit


def _video(run: Run, where: str, residency: Residency) -> VideoVAE:
    channels = run.config.in_channels
    arch = dict(RELEASE) | {"latent_channels": channels} | (TINY_VAE if run.smoke else {})
    stats = LatentStats(mean=(0.0,) * channels, std=(1.0,) * channels)
    config = VideoVAEConfig(
        folder=Path("."), arch=arch, stats=stats, tile_pixels=256, min_overlap_pixels=64, weights_file=None
    )
    with torch.device("meta"):
        decoder = ViTDecoder(config.decoder, select.create(select.automatic(run.device)))
    decoder.compute_dtype = torch.float16 if run.on_gpu else torch.float32
    for name, parameter in decoder.named_parameters():
        parameter.data = parameter.data.to(decoder.dtype_of(name))
    decoder.requires_grad_(False).eval()
    prepare = drawn(run.device)
    if where == "resident":
        prepare(decoder, None)
        move(decoder, run.device)
    else:
        stacks = [list(decoder.transformer_blocks)] if where == "streamed" else []
        residency.add("video", stream_component(decoder, stacks, run.device, prepare=prepare))
    return VideoVAE(config, decoder, run.device)


def _encode(run: Run, model: Any) -> Tensor:
    vocabulary = model.language_model.embed_tokens.num_embeddings
    count = PROMPT_TOKENS if run.on_gpu else run.shapes[0].text
    ids = torch.arange(count, device=run.device)[None] % (vocabulary // 2) + 5
    out = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=torch.zeros_like(ids), use_cache=False
    )
    states: Tensor = out.last_hidden_state[0]
    assert states.shape[1] == run.config.text_dim, states.shape
    return states


def _pack(run: Run, dit: Any, states: Tensor) -> Step:
    source = RandomDiT(run.config, run.device, torch.bfloat16)
    inputs = fw.make_inputs(source, [run.shapes[0]], run.device, torch.bfloat16)
    return Step(dit, replace(inputs, text=states[: run.shapes[0].text]))


def _denoise(step: Step) -> Tensor:
    """The latents [1, C, T, h, w] of random rows after three forwards."""
    from talkies.h3.packing import unpatchify_video
    from talkies.sampling.schedule import build_dual

    schedule = build_dual(NUM_FORWARDS + 1)
    inputs = step.inputs
    for index in range(NUM_FORWARDS):
        _forward(step, schedule.step(index).video)
        print(f"    forward {index + 1} enqueued", flush=True)
    frames, height, width = _sizes_of(inputs)
    return unpatchify_video(inputs.video, frames, height, width, step.dit.config.patch_size)


def _forward(step: Step, video: SigmaStep) -> None:
    """One step as the engine does it. A function of its own, so that no row of a step outlives it: the block's output
    alone would be 0.6 GiB under the next forward at 58,758 rows."""
    velocity, _ = step()
    step.inputs.video.copy_(euler_step(step.inputs.video, velocity, video))


def _sizes_of(inputs: fw.Inputs) -> tuple[int, int, int]:
    """Latent frames, height, width of the only request."""
    for shape in (fw.FULL, fw.SMALL, fw.SMOKE):
        if shape.layout().num_rows == inputs.layout.num_rows:
            return shape.frames, shape.height, shape.width
    raise AssertionError(inputs.layout.num_rows)


def _decode(run: Run, video: VideoVAE, latents: Tensor) -> int:
    return sum(int(chunk.cpu().shape[0]) for chunk in video.decode(latents))


def _memory(device: torch.device) -> str:
    return f"{torch.cuda.memory_allocated(device) / GIB:.2f} GiB" if device.type == "cuda" else "on a CPU"
