"""The video VAE's config, from either disk layout, as one frozen value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talkies.codecs.latents import LatentStats
from talkies.codecs.video.temporal import TemporalPlan
from talkies.codecs.video.tiles import MIN_OVERLAP_PIXELS, TILE_PIXELS
from talkies.codecs.video.vit_decoder import ViTDecoderConfig
from talkies.errors import CheckpointError
from talkies.files.component_folders import WeightFolder, stated
from talkies.files.json_files import read_json

# The released architecture: what the original layout's wrapper config leaves unsaid.
RELEASE: Mapping[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 24,
    "block_out_channels": (128, 256, 256, 512, 512, 1024),
    "layers_per_block": 2,
    "spatial_downsample_factors": (2, 2, 2, 2, 1, 1),
    "temporal_downsample_factors": (1, 2, 2, 1, 1, 1),
    "norm_num_groups": 32,
    "norm_eps": 1e-6,
    "spatial_padding_mode": "reflect",
    "decoder_num_layers": 36,
    "decoder_num_attention_heads": 32,
    "decoder_attention_head_dim": 64,
    "decoder_num_register_tokens": 4,
    "decoder_ffn_mult": 4,
    "decoder_rope_theta": 100.0,
    "decoder_rope_dim_ratio": 0.75,
    "decoder_norm_eps": 1e-5,
    "clip_length": 17,
    "token_drop": 3,
}
ALIASES: Mapping[str, str] = {
    "vae_clip_length": "clip_length",
    "vae_token_drop": "token_drop",
    "z_channels": "latent_channels",
    "out_ch": "out_channels",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoVAEConfig:
    """Everything about a video VAE that is not a weight."""

    folder: Path
    arch: Mapping[str, Any]  # the keys of RELEASE
    stats: LatentStats
    tile_pixels: int
    min_overlap_pixels: int
    weights_file: Path | None  # the original layout names its file; None: search the folder

    @property
    def latent_channels(self) -> int:
        return int(self.arch["latent_channels"])

    @property
    def spatial_factor(self) -> int:
        return math.prod(self.arch["spatial_downsample_factors"])

    @property
    def temporal(self) -> TemporalPlan:
        return TemporalPlan(
            clip_frames=int(self.arch["clip_length"]),
            factor=math.prod(self.arch["temporal_downsample_factors"]),
            token_drop=int(self.arch["token_drop"]),
        )

    @property
    def decoder(self) -> ViTDecoderConfig:
        a = self.arch
        return ViTDecoderConfig(
            latent_channels=self.latent_channels,
            out_channels=a["out_channels"],
            patch_size=self.spatial_factor,
            patch_size_t=self.temporal.factor,
            num_layers=a["decoder_num_layers"],
            num_heads=a["decoder_num_attention_heads"],
            head_dim=a["decoder_attention_head_dim"],
            num_register_tokens=a["decoder_num_register_tokens"],
            ffn_mult=a["decoder_ffn_mult"],
            rope_theta=a["decoder_rope_theta"],
            rope_dim_ratio=a["decoder_rope_dim_ratio"],
            norm_eps=a["decoder_norm_eps"],
        )

    @property
    def encoder_kwargs(self) -> dict[str, Any]:
        """Constructor arguments of the encoder, which emits mean and log-variance of each latent channel."""
        names = (
            "in_channels block_out_channels layers_per_block spatial_downsample_factors "
            "temporal_downsample_factors norm_num_groups norm_eps spatial_padding_mode"
        )
        return {name: self.arch[name] for name in names.split()} | {"out_channels": 2 * self.latent_channels}

    def weights(self) -> WeightFolder:
        return WeightFolder(self.folder, self.weights_file)

    @classmethod
    def read(cls, folder: Path) -> VideoVAEConfig:
        """From ``folder/config.json``; in the original layout also its ``source/config.json``.

        Raises ``CheckpointError`` for a config that is absent, lacks the statistics or contradicts itself.
        """
        wrapper = read_json(folder / "config.json")
        arch = dict(RELEASE)
        weights_file = None
        if "source_safetensors_path" in wrapper:
            source = folder / str(wrapper.get("source_path", "source"))
            weights_file = source / str(wrapper["source_safetensors_path"])
            if (source / "config.json").is_file():
                arch |= stated(read_json(source / "config.json"), RELEASE, ALIASES)
        arch |= stated(wrapper, RELEASE, ALIASES)
        spatial, temporal, blocks = (
            len(arch[k]) for k in ("spatial_downsample_factors", "temporal_downsample_factors", "block_out_channels")
        )
        if not spatial == temporal == blocks:
            raise CheckpointError(
                f"{folder / 'config.json'}: {blocks} blocks, {spatial} spatial and {temporal} temporal factors",
                param=str(folder),
            )
        return cls(
            folder=folder,
            arch=arch,
            stats=LatentStats.of_config(wrapper, int(arch["latent_channels"]), str(folder / "config.json")),
            tile_pixels=int(wrapper.get("vae_tile_size", TILE_PIXELS)),
            min_overlap_pixels=int(wrapper.get("vae_tile_overlap_min", MIN_OVERLAP_PIXELS)),
            weights_file=weights_file,
        )
