"""Modules with random weights that are drawn where they are needed, and the text encoder at its released sizes.

A DiT of random weights is ``talkies.benchmarks.random_dit``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from talkies.codecs.text.encoder import NUM_LAYERS, restore_buffers

# Qwen3-VL 32B, as far as it is read.
TEXT: dict[str, Any] = {
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": NUM_LAYERS,
    "vocab_size": 151_936,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5e6,
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
    },
}
VISION: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 5120,
    "deepstack_visual_indexes": [8, 16, 24],
}
TINY_TEXT = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "vocab_size": 600,
    "rope_parameters": TEXT["rope_parameters"] | {"mrope_section": [6, 5, 5]},
}
TINY_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 48}
TINY_VISION |= {"deepstack_visual_indexes": [0]}


def drawn(device: torch.device) -> Callable[[nn.Module, Collection[str] | None], None]:
    """Weights of the meta device become random ones on ``device``, a module at a time."""

    def prepare(module: nn.Module, names: Collection[str] | None) -> None:
        for name, parameter in list(module.named_parameters()):
            if not parameter.is_meta or (names is not None and name not in names):
                continue
            path, _, leaf = name.rpartition(".")
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            value = torch.randn(parameter.shape, dtype=parameter.dtype, device=device)
            value.mul_(fan_in**-0.5 if parameter.ndim > 1 else 0.02)
            if parameter.ndim == 1 and leaf == "weight":
                value.add_(1.0)
            module.get_submodule(path)._parameters[leaf] = nn.Parameter(value, requires_grad=False)

    return prepare


def text_model(text: dict[str, Any], vision: dict[str, Any], device: torch.device) -> Any:
    """A Qwen3VLModel as ``TextEncoder.load`` builds it, bf16, without weights: they are on the meta device.

    ``text`` and ``vision`` are transformers' keys; computed tables are on ``device``.
    """
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    config: Any = Qwen3VLConfig.from_dict({"text_config": text, "vision_config": vision})
    with torch.device("meta"):
        model: Any = Qwen3VLModel(config)
    model.to(torch.bfloat16)
    model.language_model.norm = nn.Identity()
    restore_buffers(model, config, device)
    return model.requires_grad_(False).eval()
