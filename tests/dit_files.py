"""Whole DiTs for tests: a state dict in another layout, and a model from a folder in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talkies.attention import registry
from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Layout
from talkies.h3.rope import inverse_frequencies
from talkies.model.dit import PackedDiT
from talkies.model.weights import DiTReader, build_dit


def convert_dit(
    tensors: Mapping[str, Tensor], config: DiTConfig, *, source: Layout, target: Layout
) -> dict[str, Tensor]:
    """A whole state dict from one layout to the other."""
    converted: dict[str, Tensor] = {}
    for spec in keys.all_specs(config):
        ours = keys.join(spec, [tensors[key] for key in keys.file_keys(spec.name, source)], source, config)
        parts = keys.split(spec, ours, target, config)
        converted.update(zip(keys.file_keys(spec.name, target), parts, strict=True))
    if target is not Layout.PORT:
        converted[keys.ROPE_KEY] = inverse_frequencies(config.rope_freq_dim, config.rope_theta)
    return converted


def load_dit(path: Path, config: DiTConfig | None = None, *, dtype: torch.dtype, **options: Any) -> PackedDiT:
    """A DiT with plain attention; ``config`` defaults to the folder's ``config.json``."""
    return build_dit(DiTReader(path, config, dtype), attend=registry.create("sdpa"), **options)
