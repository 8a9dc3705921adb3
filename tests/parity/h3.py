"""Tiny random-weight models of the oracle (diffusers) and ours with the same weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from talkies.h3.config import DiTConfig
from tests import tiny_checkpoint
from tests.dit_files import load_dit

TINY = tiny_checkpoint.DIT


def oracle_dit(seed: int = 0, dtype: torch.dtype = torch.float32, **overrides):
    """A diffusers DiT whose every parameter is random; float32 islands stay float32."""
    from diffusers import MiniMaxH3Transformer3DModel

    model = MiniMaxH3Transformer3DModel(**{**TINY, **overrides}).eval()
    generator = torch.Generator().manual_seed(seed)
    islands = ("proj_in", "proj_out", "audio_proj", "time_embedder")
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            is_norm = parameter.ndim == 1 and bool((parameter == 1).all())
            parameter.copy_(1.0 + noise if is_norm else noise)
            if not name.startswith(islands):
                parameter.data = parameter.data.to(dtype)
    return model.requires_grad_(False)


def our_dit(oracle, folder: Path, dtype: torch.dtype = torch.float32, **kwargs):
    """Ours, read from a file of the oracle's weights."""
    file = folder / "diffusion_pytorch_model.safetensors"
    save_file({k: v.contiguous() for k, v in oracle.state_dict().items()}, file)
    config = DiTConfig.from_dict(dict(oracle.config))
    return load_dit(file, config, dtype=dtype, **kwargs)
