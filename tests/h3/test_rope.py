"""Rotary angles against the formula, in the precision that the release has them in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkies.h3.rope import inverse_frequencies, rotary_table

# Fractions of a second and rows of a long clip: what float32 and bfloat16 round otherwise than float64.
POSITIONS = torch.tensor([[0.0, 0.0, 0.0], [1.0 / 3.0, 7.0, 11.0], [1234.5678901, 83.0, 47.0]], dtype=torch.float64)


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_frequencies_are_powers_of_theta_in_float32(theta):
    exponents = np.arange(0, 32, 2, dtype=np.float32) / np.float32(32)
    want = torch.from_numpy(np.float32(1) / np.power(np.float32(theta), exponents))
    torch.testing.assert_close(inverse_frequencies(16, theta), want, rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_positions_round_to_float32_and_cosines_round_last(theta, dtype):
    cos, sin = rotary_table(POSITIONS, 16, theta, dtype)
    assert cos.shape == sin.shape == (3, 48)
    angles = torch.stack(
        [torch.cat([row[axis].float() * inverse_frequencies(16, theta) for axis in range(3)]) for row in POSITIONS]
    )
    assert angles.dtype == torch.float32
    assert torch.equal(cos, angles.cos().to(dtype))
    assert torch.equal(sin, angles.sin().to(dtype))
    # It is another table than that of angles in float64, or of angles that were rounded before their cosine.
    exact = torch.cat([POSITIONS[:, a, None] * inverse_frequencies(16, theta).double() for a in range(3)], dim=1)
    if dtype == torch.float32:
        assert not torch.equal(cos, exact.cos().float())
    assert not torch.equal(cos, angles.to(torch.bfloat16).float().cos().to(dtype))
