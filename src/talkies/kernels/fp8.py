"""What an fp8 tensor is here: e4m3 values with one float32 scale a row.

S rows, K channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
# A row of zeros keeps a scale that can be divided by; 448 times it is still a normal float32.
MIN_SCALE = 1e-12


def scale_of(largest: Tensor) -> Tensor:
    """The scale with which this magnitude becomes 448; new, in float32 as ``largest``."""
    return (largest * (1.0 / E4M3_MAX)).clamp_(min=MIN_SCALE)


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """``data * scale`` is the value. ``data`` is e4m3 [S, K], contiguous in K; ``scale`` float32 [S, 1].

    ``dtype`` is what the values were before, and what a product of them rounds to.
    """

    data: Tensor
    scale: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def device(self) -> torch.device:
        return self.data.device

    def __getitem__(self, rows: slice) -> Fp8Rows:
        return Fp8Rows(self.data[rows], self.scale[rows], self.dtype)

    def dequantized(self) -> Tensor:
        """The values, float32 [S, K]."""
        return self.data.float() * self.scale
