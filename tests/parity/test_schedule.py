"""Sigma grids, Euler steps and anchor noising: equal to diffusers' MiniMaxH3Scheduler bit for bit."""

from __future__ import annotations

import pytest
import torch

from talkies.sampling.anchors import noised
from talkies.sampling.euler import euler_step
from talkies.sampling.schedule import build_dual


def _oracle(shift):
    from diffusers import MiniMaxH3Scheduler

    return MiniMaxH3Scheduler(shift=shift)


@pytest.mark.parametrize("num_sigmas", [2, 3, 4, 5, 9, 20, 50, 73, 200, 2000])
@pytest.mark.parametrize(("video_shift", "audio_shift"), [(12.0, 3.0), (10.0, 3.0), (1.0, 0.7)])
def test_grids_equal_diffusers(num_sigmas, video_shift, audio_shift):
    schedule = build_dual(num_sigmas, video_shift=video_shift, audio_shift=audio_shift)
    for ours, t, shift in (
        (schedule.video_sigmas, schedule.t_video, video_shift),
        (schedule.audio_sigmas, schedule.t_audio, audio_shift),
    ):
        oracle = _oracle(shift)
        oracle.set_timesteps(num_sigmas)
        assert torch.equal(ours, oracle.sigmas)
        assert torch.equal(t, oracle.timesteps)
    assert schedule.num_forwards == oracle.num_inference_steps


def test_every_euler_step_is_bit_equal():
    schedule = build_dual(20)
    generator = torch.Generator().manual_seed(0)
    for modality, shift in (("video", 12.0), ("audio", 3.0)):
        oracle = _oracle(shift)
        oracle.set_timesteps(20)
        ours = theirs = torch.randn(37, 16, generator=generator)
        for i, t in enumerate(oracle.timesteps):
            velocity = torch.randn(37, 16, generator=generator)
            theirs = oracle.step(velocity, t, theirs, return_dict=False)[0]
            ours = euler_step(ours, velocity, getattr(schedule.step(i), modality))
            assert torch.equal(ours, theirs), i


def test_anchor_noising_is_bit_equal():
    clean, noise = torch.randn(1, 4, 3, 4, 6), torch.randn(1, 4, 3, 4, 6)
    assert torch.equal(noised(clean, noise), _oracle(12.0).scale_noise(clean, 0.999, noise))
