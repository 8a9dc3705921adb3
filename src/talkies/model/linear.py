"""The matrix products of a block: weights as plain tensors, in the block dtype or as e4m3 with a scale per output.

S rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talkies.kernels.fp8 import E4M3, Fp8Rows
from talkies.kernels.select import Ops


class Linear(nn.Module):
    """``x @ weight.T``, no bias. ``weight_scale`` is there exactly when ``weight`` is e4m3.

    Which of the two it is, is decided by whoever assigns the weights (``placement.quantize``); producers ask for
    ``input_dtype`` and fuse the quantisation, and what still comes in unquantised is quantised here.
    """

    weight: Tensor
    weight_scale: Tensor | None

    def __init__(self, num_inputs: int, num_outputs: int, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs), requires_grad=False)
        self.register_parameter("weight_scale", None)

    @property
    def input_dtype(self) -> torch.dtype | None:
        """What ``x`` is best handed over as: e4m3, or ``None`` for the block dtype."""
        return E4M3 if self.weight_scale is not None else None

    def forward(self, x_SK: Tensor | Fp8Rows) -> Tensor:
        """Returns a new [S, N] in the block dtype."""
        return self._product(x_SK, slice(None))

    def part(self, x_SK: Tensor | Fp8Rows, outputs: slice, out: Tensor) -> None:
        """Writes some of the outputs to ``out`` [S, outputs], contiguous and in the block dtype."""
        self._product(x_SK, outputs, out)

    def _product(self, x_SK: Tensor | Fp8Rows, outputs: slice, out: Tensor | None = None) -> Tensor:
        weight, scale = self.weight[outputs], self.weight_scale
        if scale is None:
            assert isinstance(x_SK, Tensor)
            return F.linear(x_SK, weight) if out is None else torch.mm(x_SK, weight.t(), out=out)
        if isinstance(x_SK, Tensor):
            x_SK = self.ops.quantize_rows(x_SK)
        return self.ops.fp8_linear(x_SK, weight, scale[outputs], out=out)
