"""From a checkpoint's configs and a request's geometry to the planner's sizes, and from flags to residences.

Reads configs and the headers of weight files, never a weight.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import torch

from talkies.attention.partial import partial_of
from talkies.capacity import measure, planner, stage_bytes, weight_bytes
from talkies.capacity.cards import parse as parse_machine
from talkies.capacity.demand import Demand, demand_of
from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Plan, Wishes
from talkies.capacity.ram import free_ram_bytes
from talkies.capacity.sizes import Sizes, TextSizes, VideoSizes
from talkies.codecs.audio.vae import AudioVAEConfig
from talkies.codecs.text.encoder import NUM_LAYERS
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.shards import check_degree
from talkies.codecs.video.config import VideoVAEConfig
from talkies.codecs.video.vae import TOKENS_PER_BATCH_CPU, TOKENS_PER_BATCH_GPU
from talkies.engine.config import EngineConfig, ResolvedConfig
from talkies.errors import ConfigError
from talkies.files.home import base_folder
from talkies.files.json_files import read_json
from talkies.files.tensor_files import TensorFiles
from talkies.h3.geometry import Limits
from talkies.h3.partitions import Parts
from talkies.model.chunking import Chunking
from talkies.model.weights import read_config
from talkies.placement.components import Residences
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.placement.ranks.mesh import ONE, Mesh
from talkies.placement.ranks.tensor_parallel import shard_config
from talkies.placement.stream.host_memory import gib, raise_memlock
from talkies.placement.stream.layerwise import LayerwiseConfig
from talkies.request import VideoRequest

log = logging.getLogger(__name__)
TYPICAL_PROMPT = "x" * 1000
AUTO_SHARE = 0.9  # of what is free: a budget that nobody gave leaves something for others
# Tensors of a full-rate layer that live together, counted in torch's record of allocations.
AUDIO_DECODE_TENSORS, AUDIO_ENCODE_TENSORS = 14, 8
SAMPLE_BYTES = 80  # of a stereo sample, however few channels there are
# Without oneDNN's blocked kernels a 3x3x3 convolution unrolls its input 27 times.
ENCODE_TENSORS_CPU, ENCODE_TENSORS_CUDA = 40, 12
# Whoever sets one of them has chosen the settings; the second is the newer name.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def sizes_of(parts: Parts, *, on_gpu: bool, dtype: torch.dtype, mesh: Mesh = ONE, num_text: int = 1) -> Sizes:
    """Of one device, which has a share of the DiT where several have one together, and of the text encoder where
    ``num_text`` have.

    Raises ``CheckpointError`` for a config that is missing or wrong.
    """
    folders = list(parts.transformers.values())
    config = read_json(parts.text_encoder / "config.json")
    text = config["text_config"]
    heads, width = text["num_attention_heads"], text["hidden_size"]
    vision_config, patches = config["vision_config"], PatchConfig.load(parts.processor)
    vision = {key: prod(e.shape) for key, e in TensorFiles(parts.text_encoder).keys.items() if "visual." in key}
    vision_layers: Counter[str] = Counter()
    for key, count in vision.items():
        if "visual.blocks." in key:
            vision_layers[key.split("visual.blocks.")[1].split(".")[0]] += count
    video = VideoVAEConfig.read(parts.video_vae)
    vit, temporal, channels = video.decoder, video.temporal, video.encoder_kwargs["block_out_channels"][0]
    audio = AudioVAEConfig.read(parts.audio_vae)
    last = max(1, audio.arch["decoder_dim"] // 2 ** len(audio.arch["decoder_rates"]))
    return Sizes(
        dit=shard_config(read_config(folders[0]), mesh.tensor),
        text=TextSizes(
            width=width,
            inner=text["intermediate_size"],
            num_layers=NUM_LAYERS,
            num_heads=heads,
            num_kv_heads=text["num_key_value_heads"],
            head_dim=text.get("head_dim", width // heads),
            vocabulary=text["vocab_size"],
            vision_parameters=sum(vision.values()),
            vision_width=vision_config["hidden_size"],
            vision_inner=vision_config["intermediate_size"],
            vision_patch_values=3 * patches.temporal_patch_size * patches.patch_size**2,
            num_vision_layers=len(vision_layers),
            vision_layer_parameters=max(vision_layers.values(), default=0),
            shards=num_text,
        ),
        video=VideoSizes(
            width=vit.width,
            num_layers=vit.num_layers,
            ffn_mult=vit.ffn_mult,
            latent_channels=vit.latent_channels,
            pixels_per_token=vit.out_channels * vit.patch_size_t * vit.patch_size**2,
            extra_tokens=vit.num_register_tokens + 1,
            batch_tokens=TOKENS_PER_BATCH_GPU if on_gpu else TOKENS_PER_BATCH_CPU,
            tile_pixels=video.tile_pixels,
            tile_overlap=video.min_overlap_pixels,
            spatial_factor=video.spatial_factor,
            window_latents=temporal.min_latents,
            clip_latents=temporal.clip_latents,
            window_frames=temporal.min_latents * temporal.factor,
            clip_frames=temporal.clip_frames,
            linear_bytes=2 if on_gpu else 4,
            encoder_pixel_bytes=4 * channels * (ENCODE_TENSORS_CUDA if on_gpu else ENCODE_TENSORS_CPU),
        ),
        audio_parameters=sum(prod(entry.shape) for entry in TensorFiles(parts.audio_vae).keys.values()),
        audio_sample_bytes=4 * 2 * last * AUDIO_DECODE_TENSORS + SAMPLE_BYTES,
        audio_encode_sample_bytes=4 * 2 * audio.arch["encoder_dim"] * AUDIO_ENCODE_TENSORS + SAMPLE_BYTES,
        block_bytes=dtype.itemsize,
        num_partitions=len(folders),
        mesh=mesh,
    )


def typical_demand(limits: Limits) -> Demand:
    """The default clip of a checkpoint with a long prompt: what a start without a request is planned for."""
    return demand_of(VideoRequest(prompt=TYPICAL_PROMPT), replace(limits, tasks=("t2va",)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """What the loader obeys. ``plan`` is there when the planner was asked."""

    residences: Residences
    chunking: Chunking
    plan: Plan | None = None
    wishes: Wishes = field(default_factory=Wishes)


def decide(config: EngineConfig, resolved: ResolvedConfig, parts: Parts, limits: Limits) -> Placement:
    """Flags win; what they leave open is planned on a GPU, and resident on a CPU.

    Raises ``ConfigError`` for a budget that nothing fits, or of a device that is not used, and for degrees that the
    checkpoint or its attention cannot be shared by.
    """
    on_gpu = resolved.device.type == "cuda"
    for folder in parts.transformers.values():
        resolved.mesh.check(read_config(folder), head_groups=resolved.chunking.head_groups)
    if resolved.mesh.ring > 1:
        partial_of(resolved.attention)
    if resolved.num_text > 1:
        check_degree(read_json(parts.text_encoder / "config.json"), resolved.num_text)
    if config.vram_budget is not None and not on_gpu:
        raise ConfigError(
            "vram_budget has no meaning on a CPU", hint="use ram_budget, or device=cuda", param="vram_budget"
        )
    fixed = _fixed(config)
    asks = on_gpu and (fixed is None or config.vram_budget is not None)
    if not asks:
        if config.ram_budget is not None:
            sizes = sizes_of(parts, on_gpu=on_gpu, dtype=resolved.dtype, mesh=resolved.mesh, num_text=resolved.num_text)
            _check_ram(config.ram_budget, sizes, typical_demand(limits), resolved)
        return Placement(residences=fixed or Residences(), chunking=resolved.chunking)
    sizes = sizes_of(parts, on_gpu=on_gpu, dtype=resolved.dtype, mesh=resolved.mesh, num_text=resolved.num_text)
    machine = machine_of(resolved.device, config.vram_budget, config.ram_budget, attention=resolved.attention)
    wishes = wishes_of(config, fp8_attention="fp8" in resolved.attention)
    found = planner.make_plan(sizes, typical_demand(limits), machine, wishes)
    raise_memlock(found.host_bytes)
    return Placement(residences=found.residences, chunking=found.chunking, plan=found, wishes=wishes)


def wishes_of(config: EngineConfig, *, fp8_attention: bool) -> Wishes:
    """What the flags say; the rest is the planner's."""
    return Wishes(
        resident_blocks=config.resident_blocks,
        residences=_fixed(config),
        chunking=config.chunking if config.chunking != Chunking() else None,
        quantize=config.quantize,
        text_quantize=config.text_quantize,
        fp8_attention=fp8_attention,
    )


def _fixed(config: EngineConfig) -> Residences | None:
    """What the flags say; ``None`` when the planner may choose."""
    if config.offload == "auto":
        return None if config.resident_blocks is None else _away(config)
    if config.offload == "none":
        return Residences()
    return _away(config)


def _away(config: EngineConfig) -> Residences:
    """The named components leave the device when they do not work. The DiT streams in either mode: streamed, it is away
    like the others and needs less when it works."""
    parts = config.offload_components
    return Residences(
        dit=LayerwiseConfig(resident=config.resident_blocks or 0) if "dit" in parts else None,
        text="resident" if "text" not in parts else "evicted" if config.offload == "module" else "streamed",
        video="evicted" if "video" in parts else "resident",
        audio="evicted" if "audio" in parts else "resident",
    )


def machine_of(device: torch.device, vram_budget: int | None, ram_budget: int | None, *, attention: str) -> Hardware:
    """This machine's rates with the backend that will be used (its resolved name), measured once; its free memory
    now."""
    machine = measure.of_device(device, cache_folder(), attention)
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)
    if vram_budget is not None and vram_budget > free:
        raise ConfigError(
            f"vram_budget={gib(vram_budget)}, but {gib(free)} of {gib(total)} are free on {machine.name}",
            hint="another process may hold the rest: nvidia-smi",
            param="vram_budget",
        )
    ram = free_ram_bytes()
    return replace(
        machine,
        vram_bytes=vram_budget if vram_budget is not None else int(AUTO_SHARE * free),
        ram_bytes=ram_budget if ram_budget is not None else int(AUTO_SHARE * (ram or 0)) or machine.ram_bytes,
    )


def described(text: str, vram_budget: int | None, ram_budget: int | None) -> Hardware:
    return parse_machine(text).with_budgets(vram_budget, ram_budget)


def _check_ram(budget: int, sizes: Sizes, demand: Demand, resolved: ResolvedConfig) -> None:
    """On a CPU all is host memory: weights once and the largest stage."""
    parts = (
        weight_bytes.dit_weights(sizes, resolved.quantize, None),
        weight_bytes.text_weights(sizes, "resident", quantize=resolved.text_quantize),
        weight_bytes.video_weights(sizes, "resident"),
        weight_bytes.audio_weights(sizes, "resident"),
    )
    weights = sum(part.fixed for part in parts)
    stages: Sequence[int] = (
        stage_bytes.forward_bytes(sizes, demand.rows, Chunking()),
        stage_bytes.decode_bytes(sizes, demand),
        stage_bytes.sound_bytes(sizes, demand),
    )
    least = weights + stage_bytes.held_bytes(sizes, demand, whole_modulation=WHOLE_BYTES) + max(stages)
    if least > budget:
        raise ConfigError(
            f"ram_budget={gib(budget)}, but the weights are {gib(weights)} and the default clip needs {gib(least)}",
            hint=f"use ram_budget={-(-least // 2**20)}MiB or more",
            param="ram_budget",
        )


def cap(device: torch.device, budget: int | None) -> None:
    """The allocator fails the allocation that would pass the budget, and with it one job, not the machine.

    Its segments grow in place then: what one stage leaves in pieces the next one can use as a whole.
    """
    if budget is not None and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
            _set_allocator("expandable_segments:True")
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)


def _set_allocator(settings: str) -> None:
    """Through whichever entry this torch has: 2.11 warns of the old one, which it forwards to the new one."""
    new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if new is not None:
        new(settings)
        return
    old = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if old is None:
        log.warning("this torch cannot change its allocator: memory may be left in pieces between stages")
        return
    old(settings)


def cache_folder() -> Path | None:
    """``None`` where nothing can be kept: there is no home folder."""
    base = base_folder("XDG_CACHE_HOME", ".cache")
    return None if base is None else base / "talkies"
