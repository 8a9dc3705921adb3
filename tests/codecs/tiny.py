"""What the shared tiny checkpoint does not have: other strides, the original disk layout, identity layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from talkies.h3.vae_keys import convert_video_vae
from tests.tiny_checkpoint import VAE, _randomize

# The embedded model's strides: 4 and 2 in the first two levels, so a latent is 8 pixels wide.
VAE_FACTOR_8: dict[str, Any] = {
    **VAE,
    "block_out_channels": (8, 8, 8),
    "spatial_downsample_factors": (4, 2, 1),
    "temporal_downsample_factors": (2, 2, 1),
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, file)


def video_vae(config: dict[str, Any] = VAE, seed: int = 3) -> Any:
    from diffusers import AutoencoderKLMiniMaxH3

    return _randomize(AutoencoderKLMiniMaxH3(**config), 0.1, torch.Generator().manual_seed(seed))


def original_keys(vae: Any) -> dict[str, Tensor]:
    """The module's weights as the original layout stores them, its unread token included."""
    heads = vae.config.decoder_num_attention_heads
    width = heads * vae.config.decoder_attention_head_dim
    converted = convert_video_vae(vae.state_dict(), "original", num_heads=heads)
    return converted | {"decoder.mask_token": torch.zeros(1, 1, width)}


def save_original_video_vae(vae: Any, folder: Path) -> None:
    """``video_vae/``: a wrapper config with the statistics, the architecture and weights one level deeper."""
    config = {k: v for k, v in vae.config.items() if not k.startswith("_")}
    statistics = {key: config.pop(key) for key in ("latents_mean", "latents_std")}
    wrapper = {
        "_class_name": "MiniMaxH3VideoVAE",
        "source_path": "source",
        "source_safetensors_path": "model.safetensors",
        "vae_clip_length": config.pop("clip_length"),
        "vae_token_drop": config.pop("token_drop"),
        "vae_tile_size": 256,
        "vae_tile_overlap_min": 64,
        "z_channels": config["latent_channels"],
        **statistics,
    }
    write_json(folder / "config.json", wrapper)
    write_json(folder / "source" / "config.json", config)
    save_tensors(original_keys(vae), folder / "source" / "model.safetensors")


def save_original_audio_vae(vae: Any, folder: Path) -> None:
    """``audio_vae/``: statistics in config.json, constructor arguments in metadata.json."""
    config = {k: v for k, v in vae.config.items() if not k.startswith("_")}
    statistics = {key: config.pop(key) for key in ("latents_mean", "latents_std")}
    rate = config.pop("sampling_rate")
    write_json(
        folder / "config.json", {"sample_rate": rate, "latent_channels": config["latent_channels"], **statistics}
    )
    write_json(folder / "metadata.json", config)
    save_tensors(vae.state_dict(), folder / "model.safetensors")


def zero_outputs(text_encoder: Any, first: int) -> Any:
    """Makes every layer from ``first`` on add exactly nothing, as the embedded model's are."""
    for layer in text_encoder.model.language_model.layers[first:]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return text_encoder


def pictures(seed: int, *shape: int) -> Any:
    """Random uint8 pixels as numpy."""
    import numpy as np

    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
