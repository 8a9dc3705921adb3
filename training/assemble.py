"""Writes the trained parts as a folder in the diffusers layout, and reads them back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from training import world
from training.components import PATCH
from training.dit import text
from training.editions import FIRST, Edition

SHIFTS = {"scheduler": 3.0, "audio_scheduler": 2.0}
COMPONENTS = {
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}
REFERENCE_PARTITION = "transformer_ref"  # the folder where the engine and diffusers look for the ref2va DiT
IMAGE_PIXELS = {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}  # bounds on the area, whatever the keys say
VIDEO_PIXELS = {"shortest_edge": 32 * 32, "longest_edge": 64 * 256 * 256}


def settings_of(edition: Edition) -> dict[str, Any]:
    """What the engine reads beside the weights: `talkies.json`."""
    canvases = edition.world.CANVASES.values()
    short_edge = min(min(canvas.width, canvas.height) for canvas in canvases)
    return {
        "default_num_frames": 56,
        "default_num_sigmas": 20,
        "min_num_frames": min(world.FRAME_COUNTS),
        "max_num_frames": max(world.FRAME_COUNTS),
        "canvas_multiple": next(iter(canvases)).latent_px * PATCH,
        "canvas_short_edge": short_edge,
        "canvas_max_pixels": max(canvas.width * canvas.height for canvas in canvases),
        "reference_image_short_edge": short_edge,
        "named_ratios": {canvas.name: [canvas.width, canvas.height] for canvas in canvases},
        "partition": "fl2va",
        "tasks": ["t2va", "fl2va"],
    }


def load_video_vae(folder: Path) -> nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3

    # by hand: from_pretrained insists on accelerate for classes with float32 islands
    vae = AutoencoderKLMiniMaxH3.from_config(AutoencoderKLMiniMaxH3.load_config(folder))
    vae.load_state_dict(load_file(folder / "diffusion_pytorch_model.safetensors"))
    return vae.float().eval()


def halve(dit: nn.Module) -> nn.Module:
    """bfloat16 but for the released layout's float32 islands: patch projections, time MLP, heads."""
    for name, p in dit.named_parameters():
        if not any(island in name for island in dit._keep_in_fp32_modules):
            p.data = p.data.bfloat16()
    return dit


def save_models(models: nn.Module, folder: Path) -> None:
    """The models' DiT, already halved, and the text encoder."""
    models.cpu()
    models.dit.save_pretrained(folder / "transformer")
    text.expand(models.text.stock, models.text.tokenizer).bfloat16().save_pretrained(folder / "text_encoder")
    shrink_identities(folder / "text_encoder" / "model.safetensors", len(models.text.stock.model.language_model.layers))


def shrink_identities(path: Path, num_live_layers: int) -> None:
    """Stores the text layers behind the live ones, zeros and ones alone, in a byte each: 1.4 MB less, nothing lost."""
    state = load_file(path)
    for name, value in state.items():
        if (found := re.search(r"language_model\.layers\.(\d+)\.", name)) and int(found[1]) >= num_live_layers:
            state[name] = value.to(torch.float8_e4m3fn)
            assert torch.equal(state[name].to(value.dtype), value), name
    save_file(state, path, metadata={"format": "pt"})


def save_reference_dit(dit: nn.Module, folder: Path) -> None:
    """The second DiT, already halved."""
    dit.cpu().save_pretrained(folder / REFERENCE_PARTITION)


def _write(path: Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def finish(folder: Path, edition: Edition = FIRST) -> None:
    """Everything that is no weight: schedulers, processor, indexes, the engine's own settings."""
    import diffusers
    from diffusers import MiniMaxH3Scheduler

    components, settings = dict(COMPONENTS), settings_of(edition)
    if (folder / REFERENCE_PARTITION).is_dir():
        components[REFERENCE_PARTITION] = COMPONENTS["transformer"]
        settings["tasks"] = [*settings["tasks"], "ref2va"]
        del settings["partition"]  # the folder holds both
    for name, shift in SHIFTS.items():
        MiniMaxH3Scheduler(shift=shift).save_pretrained(folder / name)
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": IMAGE_PIXELS,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    _write(folder / "processor" / "preprocessor_config.json", image)
    video = {**image, "video_processor_type": "Qwen3VLVideoProcessor", "size": VIDEO_PIXELS}
    del video["image_processor_type"]
    _write(folder / "processor" / "video_preprocessor_config.json", video)
    for file in (folder / "tokenizer").iterdir():
        shutil.copy(file, folder / "processor" / file.name)  # Qwen3VLProcessor reads its tokenizer beside itself
    index = {"_class_name": "MiniMaxH3ModularPipeline", "_diffusers_version": diffusers.__version__}
    _write(folder / "model_index.json", index | {name: list(kind) for name, kind in components.items()})
    specs = {
        name: [*kind, {"pretrained_model_name_or_path": None, "subfolder": name, "type_hint": list(kind)}]
        for name, kind in components.items()
    }
    own = {k: settings[k] for k in ("canvas_short_edge", "canvas_max_pixels", "reference_image_short_edge")}
    _write(
        folder / "modular_model_index.json",
        {**index, "_blocks_class_name": "MiniMaxH3Blocks", **specs, **own},
    )
    _write(folder / "talkies.json", settings)
