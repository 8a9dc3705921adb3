from __future__ import annotations

import pytest
import torch

from talkies.sampling.euler import euler_step
from talkies.sampling.schedule import build_dual


@pytest.mark.parametrize("num_sigmas", [2, 5, 50])
@pytest.mark.parametrize("modality", ["video", "audio"])
def test_the_exact_velocity_walks_from_noise_to_data(num_sigmas, modality):
    data, noise = torch.randn(37, 5, dtype=torch.float32), torch.randn(37, 5)
    x = noise
    for step in build_dual(num_sigmas):
        x = euler_step(x, data - noise, getattr(step, modality))
    torch.testing.assert_close(x, data, rtol=1e-5, atol=1e-5)


def test_the_last_step_returns_the_denoised_estimate_exactly():
    step = build_dual(5).step(3).video
    x, velocity = torch.randn(7, 3), torch.randn(7, 3)
    kept = x.clone()
    assert torch.equal(euler_step(x, velocity, step), x + (1 - step.t) * velocity)
    assert torch.equal(x, kept)
