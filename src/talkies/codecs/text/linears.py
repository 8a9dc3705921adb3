"""The text encoder's matrix products in e4m3, through the same kernels as the DiT's.

L tokens, K inputs, N outputs; B is 1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from talkies.errors import ConfigError
from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.fp8_linear.scaled_mm import ALIGNMENT
from talkies.kernels.select import Ops
from talkies.model.linear import Linear

STACK = "language_model."


class TokenLinear(Linear):
    """A :class:`Linear` in the place of transformers' ``nn.Linear``, called with [B, L, K]."""

    def forward(self, x_BLK: Tensor | Fp8Rows) -> Tensor:
        """Returns [B, L, N]."""
        assert isinstance(x_BLK, Tensor)
        return super().forward(x_BLK.flatten(0, -2)).unflatten(0, x_BLK.shape[:-1])


@dataclass(frozen=True, kw_only=True)
class Fp8Linears:
    """Which linears become e4m3, with what, and where that is computed.

    ``names`` are relative to the stack, such as ``layers.0.self_attn.q_proj``.
    """

    names: Collection[str]
    ops: Ops
    device: torch.device

    def install(self, model: Any) -> None:
        """Puts linears without weights in the place of those of ``model`` that are chosen; layers that are skipped
        stay skipped. Raises ``ConfigError`` for one whose sizes or bias the kernels do not take."""
        for layer, module in model.language_model.layers.named_children():
            for path, linear in list(module.named_modules()):
                name = f"layers.{layer}.{path}"
                if name in self.names:
                    assert isinstance(linear, nn.Linear), name
                    self._check(name, linear)
                    with torch.device("meta"):
                        ours = TokenLinear(linear.in_features, linear.out_features, self.ops)
                    parent, _, leaf = path.rpartition(".")
                    setattr(module.get_submodule(parent), leaf, ours)

    def place(self, key: str, tensor: Tensor, dtype: torch.dtype) -> dict[str, Tensor] | None:
        """The two tensors of a chosen linear's weight, on ``device``; ``None`` for any other tensor.

        A weight is quantised from ``dtype``, so that it is what the same linear would have been unquantised.
        """
        owner, _, leaf = key.rpartition(".")
        if leaf != "weight" or owner.removeprefix(STACK) not in self.names:
            return None
        rows = self.ops.quantize_rows(tensor.to(device=self.device, dtype=dtype))
        return {key: rows.data, f"{owner}.weight_scale": rows.scale}

    def _check(self, name: str, linear: nn.Linear) -> None:
        sizes = (linear.in_features, linear.out_features)
        wrong = [size for size in sizes if size % ALIGNMENT] if self.device.type == "cuda" else []
        what = f"a size of {wrong[0]}, no multiple of {ALIGNMENT}" if wrong else ""
        if linear.bias is not None:
            what = "a bias"
        if what:
            raise ConfigError(
                f"text_quantization=fp8 cannot take {name}, which has {what}",
                hint="use text_quantization=none",
                param="text_quantization",
            )
