"""The finite check after each stage: a black or silent MP4 never leaves as success."""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.errors import NumericsError


def require_finite(x: Tensor, stage: str) -> Tensor:
    """Returns ``x`` unchanged; raises ``NumericsError`` naming ``stage`` when a value is NaN or infinite.

    ``aminmax`` propagates NaN and shows an infinity, and reads the tensor once without a boolean copy of it.
    """
    if x.numel():
        low, high = torch.aminmax(x.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise NumericsError(
                f"{stage} produced values that are not finite",
                hint="retry with dtype=float32, or without quantization; if it stays, the weights are damaged",
                param=stage,
            )
    return x
