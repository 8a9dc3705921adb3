from __future__ import annotations

import pytest
import torch

from talkies.h3 import positions
from talkies.h3.rope import inverse_frequencies, rotary_table


def test_the_two_clocks_add_in_different_orders():
    """Pairwise and running sums part in the last bit for long videos; each must stay where the reference uses it."""
    short = [positions.pairwise_span(n) == positions.running_span(n) for n in range(1, 8)]
    assert all(short)
    differing = [n for n in range(8, 108) if positions.pairwise_span(n) != positions.running_span(n)]
    assert differing
    for n in differing:
        assert positions.pairwise_span(n) == pytest.approx(positions.running_span(n), rel=1e-14)


@pytest.mark.parametrize("theta", [10_000.0, 100.0])
@pytest.mark.parametrize("num_freqs", [2, 5, 16])
def test_angles_are_time_then_height_then_width(num_freqs, theta):
    coordinates = torch.tensor([[3.0, -1.25, 7.5], [0.0, 0.0, 0.0], [371.6667, 27.5055, 35.3501]], dtype=torch.float64)
    cos, sin = rotary_table(coordinates, num_freqs, theta, torch.float32)
    inverse = theta ** (-torch.arange(num_freqs, dtype=torch.float64) / num_freqs)
    want = torch.cat([coordinates[:, i, None] * inverse for i in range(3)], dim=1)
    torch.testing.assert_close(cos.double(), want.cos(), rtol=0, atol=3e-5)
    torch.testing.assert_close(sin.double(), want.sin(), rtol=0, atol=3e-5)
    torch.testing.assert_close(inverse_frequencies(num_freqs, theta).double(), inverse, rtol=1e-6, atol=0)


def test_half_precision_tables_round_float32_ones():
    coordinates = torch.rand(5, 3, dtype=torch.float64) * 400
    cos, sin = rotary_table(coordinates, 4, 10_000.0, torch.float32)
    cos16, sin16 = rotary_table(coordinates, 4, 10_000.0, torch.bfloat16)
    assert torch.equal(cos16, cos.bfloat16())
    assert torch.equal(sin16, sin.bfloat16())
