"""A tiny random DiT and layout of our own classes; no oracle."""

from __future__ import annotations

import torch

from talkies.attention import registry
from talkies.h3.config import DiTConfig
from talkies.h3.packing import VisualCondition, build_layout
from talkies.model.dit import PackedDiT

CONFIG = DiTConfig(
    hidden_size=24,
    num_layers=3,
    num_refiner_layers=1,
    num_attention_heads=2,
    attention_head_dim=16,
    ffn_dim=40,
    in_channels=4,
    audio_in_channels=6,
    text_dim=20,
    freq_dim=8,
    time_embed_hidden_dim=16,
    time_embed_dim=12,
    rope_freq_dim=2,
)


def tiny_dit(seed: int = 0, dtype: torch.dtype = torch.float32) -> PackedDiT:
    dit = PackedDiT(CONFIG, attend=registry.create("sdpa"))
    generator = torch.Generator().manual_seed(seed)
    islands = ("proj_in", "audio_proj", "proj_out", "time_embedder")
    for name, parameter in dit.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        parameter.data = (1 + noise if "norm" in name and parameter.ndim == 1 else noise).to(
            torch.float32 if name.startswith(islands) else dtype
        )
    return dit.eval().requires_grad_(False)


def tiny_layout(num_text: int = 11, *, keyframe: bool = True, audio_latents: int = 9, **kwargs):
    tags = torch.ones(num_text, dtype=torch.long)
    if keyframe:
        tags[3:7] = 0
    return build_layout(
        text_tags=tags,
        conditions=[VisualCondition(kind="keyframe-first", latent_height=4, latent_width=6)] if keyframe else [],
        latent_frames=7,
        latent_height=4,
        latent_width=6,
        audio_latents=audio_latents,
        patch_size=(1, 2, 2),
        **kwargs,
    )


def tiny_rows(layout, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(layout.num_video_rows, CONFIG.video_row_dim, generator=generator),
        torch.randn(layout.num_audio_rows, CONFIG.audio_in_channels, generator=generator),
        torch.randn(layout.num_text, CONFIG.text_dim, generator=generator),
    )
