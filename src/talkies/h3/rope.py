"""Rotary angles of a packed sequence. S rows, A = 3 axes x frequencies."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_frequencies(num_freqs: int, theta: float) -> Tensor:
    """``theta ** (-j / num_freqs)``, float32 [num_freqs]; bitwise what the original checkpoint stores."""
    exponents = torch.arange(0, 2 * num_freqs, 2, dtype=torch.float32) / (2 * num_freqs)
    return 1.0 / (theta**exponents)


def rotary_table(positions_S3: Tensor, num_freqs: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``(cos, sin)``, each [S, A] in ``dtype``: t angles, then h, then w, all with the same frequencies.

    Positions are float64 and round to float32 just before the product; cosines are float32 and round last.
    """
    inverse = inverse_frequencies(num_freqs, theta).to(positions_S3.device)
    angles_SA = (positions_S3.float()[:, :, None] * inverse).flatten(1)
    return angles_SA.cos().to(dtype), angles_SA.sin().to(dtype)
