"""Per-channel latent statistics: ``z_norm = (z - mean) / std`` for both VAEs, in float32.

C latent channels. There is no scaling factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from talkies.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentStats:
    """``mean`` and ``std`` of C channels, as read from a config (Python floats, rounded to float32 on use)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of_config(cls, config: Mapping[str, Any], num_channels: int, where: str) -> LatentStats:
        """Reads ``latents_mean`` and ``latents_std``; raises ``CheckpointError`` naming ``where`` it looked."""
        values = {}
        for key in ("latents_mean", "latents_std"):
            found = config.get(key)
            if not isinstance(found, list | tuple) or len(found) != num_channels:
                size = len(found) if isinstance(found, list | tuple) else "no"
                raise CheckpointError(
                    f"{where}: {key} has {size} values, the VAE has {num_channels} latent channels",
                    hint="take config.json from the release; the weights do not carry the statistics",
                    param=where,
                )
            values[key] = tuple(float(v) for v in found)
        if min(values["latents_std"]) <= 0:
            raise CheckpointError(f"{where}: latents_std has a value that is not positive", param=where)
        return cls(mean=values["latents_mean"], std=values["latents_std"])

    def normalize(self, z: Tensor) -> Tensor:
        """``z`` float32 with channels on dim 1 -> the same shape, normalized."""
        mean, std = self._views(z)
        return (z - mean) / std

    def denormalize(self, z: Tensor) -> Tensor:
        """The inverse of :meth:`normalize`."""
        mean, std = self._views(z)
        return z * std + mean

    def _views(self, z: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, -1) + (1,) * (z.ndim - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=z.device).view(shape)
        std = torch.tensor(self.std, dtype=torch.float32, device=z.device).view(shape)
        return mean, std
