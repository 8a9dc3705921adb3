from __future__ import annotations

import pytest
import torch

from talkies.sampling.euler import euler_step, euler_steps
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


def test_many_tensors_at_steps_of_their_own_move_as_each_alone_bit_for_bit():
    long, short = build_dual(20), build_dual(5)
    steps = [long.step(0).video, long.step(7).audio, short.step(2).video, long.step(18).video]
    xs = [torch.randn(rows, width) for rows, width in ((63, 8), (14, 5), (1, 8), (9, 3))]
    velocities = [torch.randn_like(x) for x in xs]
    kept = [x.clone() for x in (*xs, *velocities)]
    for x, v, step, moved in zip(xs, velocities, steps, euler_steps(xs, velocities, steps), strict=True):
        # As the reference computes it: with sigmas as float32 tensors, each operation rounded by itself.
        x0 = x + (1 - step.t) * v
        ratio = step.sigma_next / step.sigma
        assert torch.equal(moved, ratio * x + (1.0 - ratio) * x0)
        assert torch.equal(moved, euler_step(x, v, step))
    assert all(torch.equal(a, b) for a, b in zip((*xs, *velocities), kept, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_rounds_each_product_and_sum_by_itself():
    schedule = build_dual(20)
    steps = [step for both in schedule for step in (both.video, both.audio)]
    xs, velocities = ([torch.randn(rows, 16) for rows in range(1, 39)] for _ in range(2))
    on_gpu = euler_steps([x.cuda() for x in xs], [v.cuda() for v in velocities], steps)
    for want, got in zip(euler_steps(xs, velocities, steps), on_gpu, strict=True):
        assert torch.equal(got.cpu(), want)
