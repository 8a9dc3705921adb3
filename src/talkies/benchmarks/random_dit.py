"""A DiT of any size whose weights are drawn where they are needed, one tensor at a time.

A tensor depends on its name and the seed alone: two models, ours and a peer's, or the same one quantised, have equal
weights without either being kept for the other.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.model.weights import NamedTensors

# Scores of about this spread: attention that picks rows, as a trained model's does. With norms of one it would be a
# mean over 58,758 rows, and no error in it could be seen.
QK_NORM = 2.0


class RandomDiT(NamedTensors):
    """Weights drawn by name."""

    def __init__(
        self, config: DiTConfig, device: torch.device, dtype: torch.dtype, *, seed: int = 0, widen: bool = False
    ) -> None:
        """``widen`` gives the values of ``dtype`` as float32: the exact model behind a rounded one."""
        self.config, self._device, self._dtype, self._seed, self._widen = config, device, dtype, seed, widen
        self.specs = {spec.name: spec for spec in keys.all_specs(config)}

    def tensor(self, name: str) -> Tensor:
        spec = self.specs[name]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        dtype = torch.float32 if spec.island else self._dtype
        noise = torch.randn(spec.shape, generator=generator, device=self._device, dtype=dtype)
        if len(spec.shape) == 2:
            tensor = noise.mul_(spec.shape[1] ** -0.5)
        elif name.endswith(".bias"):
            tensor = noise.mul_(0.02)
        else:
            centre = QK_NORM if name.endswith(("norm_q", "norm_k")) else 1.0
            tensor = noise.mul_(0.1).add_(centre)
        return tensor.float() if self._widen else tensor
