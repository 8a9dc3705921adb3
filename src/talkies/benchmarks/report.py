"""The three measurements behind ``talkies bench``, each one flat dictionary of names and numbers.

``engine`` are options of the engine by name, as ``EngineConfig`` takes them.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from talkies.benchmarks import floor as fl
from talkies.benchmarks import forward as fw
from talkies.benchmarks import kernels as kn
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, chained, in_turn
from talkies.engine.config import EngineConfig, resolve
from talkies.engine.engine import Engine
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.kernels import select
from talkies.placement.quantize import QuantizeConfig
from talkies.request import VideoRequest

SIZES = {"full": (fw.RELEASED, fw.FULL), "small": (fw.RELEASED, fw.SMALL), "tiny": (fw.TINY, fw.SMOKE)}


def forward(
    *,
    size: str,
    layers: int | None,
    repeats: int,
    **engine: Any,
) -> dict[str, Any]:
    """One forward in turn with its floor: the products and the attention of a block alone, times blocks."""
    told = EngineConfig.of({**engine, "dtype": "bfloat16"})
    resolved = resolve(told)
    place, dtype, name = resolved.device, resolved.dtype, resolved.attention
    config, shape = _size(size, place)
    if layers is not None:
        config = replace(config, num_layers=layers)
    source = RandomDiT(config, place, dtype)
    inputs = fw.make_inputs(source, [shape], place, dtype)
    num_rows, ops = inputs.layout.num_rows, select.create(resolved.kernels)
    quantize = QuantizeConfig(method=told.quantization)
    with torch.inference_mode():
        dit = fw.make_dit(source, place, dtype, attend=name, kernels=resolved.kernels, quantize=quantize)
        dit.use_chunking(told.chunking)
        step = fw.Step(dit, inputs)
    found = fw.measured(step, place, repeats=1)
    with torch.inference_mode():
        attend = dict(fl.attention_runs(config, num_rows, place, dtype, [name], ops))
        runs = fl.floor_runs(
            config,
            num_rows,
            place,
            dtype,
            fast=None if quantize.method == "none" else True,
            attend=attend.get(f"{name}+kernel", attend[name]),
        )
        each = chained(runs, place, repeats=3)
        floors, forwards = in_turn(fl.FloorPass(runs, config.num_layers, place), step, place, repeats=repeats)
    forward_s, floor_s = statistics.median(forwards), statistics.median(floors)
    return {
        "device": _name(place),
        "torch": torch.__version__,
        "rows": num_rows,
        "blocks": config.num_layers,
        "attention": name,
        "kernels": resolved.kernels,
        "quantization": quantize.method,
        "forward_s": forward_s,
        "floor_s": floor_s,
        "over_floor": forward_s / floor_s,
        "peak_gib": found.peak.gib,
        "activations_gib": (found.peak.most - found.peak.start) / GIB,
        "host_ms": fw.host_seconds(step, place, repeats=1) * 1e3,
        **{f"{key}_ms": value * 1e3 for key, value in each.items()},
    }


def kernels(*, size: str, repeats: int, **engine: Any) -> dict[str, Any]:
    """``<op>_ms`` and ``<op>_of_copy``: the op's bytes a second over those of a copy."""
    resolved = resolve(EngineConfig.of({**engine, "dtype": "bfloat16"}))
    place = resolved.device
    config, shape = _size(size, place)
    ops, num_rows = select.create(resolved.kernels), shape.layout().num_rows
    rate = kn.copy_rate(place, 1 << (30 if place.type == "cuda" else 24))
    found: dict[str, Any] = {"device": _name(place), "kernels": resolved.kernels, "rows": num_rows}
    found["copy_gb_per_s"] = rate / 1e9
    for name, timing in kn.time_ops(config, num_rows, place, torch.bfloat16, ops, repeats=repeats):
        found[f"{name}_ms"] = timing.seconds * 1e3
        found[f"{name}_of_copy"] = timing.bytes_per_s / rate
    return found


def e2e(
    *,
    prompt: str,
    num_sigmas: int | None,
    repeats: int,
    **engine: Any,
) -> dict[str, Any]:
    """Median seconds of each stage from prompt to MP4; the first clip is not counted."""
    opened = Engine.open(**engine)
    request = VideoRequest(prompt=prompt, num_sigmas=num_sigmas)
    with tempfile.TemporaryDirectory() as folder:
        clips = [opened.render(request, [Path(folder) / f"{i}.mp4"])[0] for i in range(repeats + 1)][1:]
    resolved = opened.components.config
    totals = [sum(clip.stages_s.values()) for clip in clips]
    return {
        "device": _name(resolved.device),
        "model": resolved.model_name,
        "attention": resolved.attention,
        "kernels": resolved.kernels,
        "quantization": resolved.quantize.method,
        "frames": clips[0].frames,
        "num_forwards": clips[0].num_forwards,
        **{f"{stage}_s": statistics.median(clip.stages_s[stage] for clip in clips) for stage in clips[0].stages_s},
        "total_s": statistics.median(totals),
        "rtf": statistics.median(totals) / clips[0].seconds,
    }


def _size(size: str, device: torch.device) -> tuple[DiTConfig, fw.Shape]:
    if size == "auto":
        size = "full" if device.type == "cuda" else "tiny"
    if size not in SIZES:
        raise ConfigError(f"size={size!r} is unknown", hint="use " + ", ".join(("auto", *SIZES)), param="size")
    return SIZES[size]


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
