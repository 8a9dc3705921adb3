"""Tensor parallelism of the text encoder: each rank holds some heads and some inner channels of every layer.

Of a product whose outputs are cut (queries, keys, values, gate, up, the first of a vision MLP) a rank has its rows; of
the one that follows (output, down, the second) it has the columns that fit them, and the ranks' results are summed. So
every rank has the whole stream after each half of a layer. Embeddings, norms, mergers and the biases of sums are whole
on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talkies.errors import ConfigError

# By the last two parts of a module's name: outputs are cut, in so many equal parts (queries, keys and values are one
# matrix in the vision tower), or inputs.
_OUTPUTS: Mapping[str, int] = {
    "self_attn.q_proj": 1,
    "self_attn.k_proj": 1,
    "self_attn.v_proj": 1,
    "mlp.gate_proj": 1,
    "mlp.up_proj": 1,
    "attn.qkv": 3,
    "mlp.linear_fc1": 1,
}
_INPUTS = ("self_attn.o_proj", "mlp.down_proj", "attn.proj", "mlp.linear_fc2")


@dataclass(frozen=True, slots=True)
class TextShard:
    """Share ``rank`` of ``size``. ``add_up`` makes a tensor the sum of all ranks' ones, in place."""

    rank: int
    size: int
    add_up: Callable[[Tensor], object]

    def install(self, model: Any) -> None:
        """Linears of this share, on the meta device, in the place of those of a Qwen3VLModel that is there, too."""
        for path, module in list(model.named_modules()):
            name = _short(path)
            if not isinstance(module, nn.Linear) or name not in (*_OUTPUTS, *_INPUTS):
                if hasattr(module, "qkv"):  # the vision tower's attention asks for its number; the layers' infer it
                    module.num_heads //= self.size
                continue
            sizes, has_bias = (module.in_features, module.out_features), module.bias is not None
            with torch.device("meta"):
                ours: nn.Linear
                if name in _OUTPUTS:
                    ours = nn.Linear(sizes[0], sizes[1] // self.size, bias=has_bias)
                else:
                    ours = SummedLinear(sizes[0] // self.size, sizes[1], bias=has_bias, add_up=self.add_up)
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, ours)

    def cut(self, key: str, tensor: Tensor) -> Tensor:
        """This share of a stored tensor; one that every rank has whole comes back as it is."""
        owner, _, leaf = key.rpartition(".")
        name = _short(owner)
        if name in _OUTPUTS:
            parts = tensor.unflatten(0, (_OUTPUTS[name], self.size, -1))
            return parts[:, self.rank].flatten(0, 1)
        if name in _INPUTS and leaf == "weight":
            return tensor.unflatten(1, (self.size, -1))[:, self.rank]
        return tensor


class SummedLinear(nn.Linear):
    """Some inputs of a linear: the ranks' products are summed, then the bias is added once."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, add_up: Callable[[Tensor], object]) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._add_up = add_up

    def forward(self, input: Tensor) -> Tensor:
        out = F.linear(input, self.weight)
        self._add_up(out)
        return out if self.bias is None else out + self.bias


def check_degree(config: Mapping[str, Any], degree: int) -> None:
    """Raises ``ConfigError`` where an encoder of this ``config.json`` cannot be cut into ``degree`` shares."""
    text, vision = config["text_config"], config["vision_config"]
    counts = {
        "heads": text["num_attention_heads"],
        "key heads": text["num_key_value_heads"],
        "feed-forward channels": text["intermediate_size"],
        "vision heads": vision["num_heads"],
        "vision feed-forward channels": vision["intermediate_size"],
    }
    wrong = [f"{count} {what}" for what, count in counts.items() if count % degree]
    if wrong:
        fitting = [n for n in range(1, min(counts.values()) + 1) if not any(c % n for c in counts.values())]
        raise ConfigError(
            f"text_tensor_parallel={degree} does not divide the text encoder's {' and '.join(wrong)}",
            hint=f"use one of {', '.join(map(str, fitting))}",
            param="text_tensor_parallel",
        )


def _short(path: str) -> str:
    """The last two parts of a module's name."""
    return ".".join(path.split(".")[-2:])
