from __future__ import annotations

import pytest
import torch

from talkies.errors import InvalidRequest
from talkies.h3.packing import VisualCondition, patchify_video
from talkies.sampling import noise

SIZES = {
    "latent_frames": 7,
    "latent_height": 4,
    "latent_width": 6,
    "audio_latents": 9,
    "in_channels": 4,
    "audio_in_channels": 6,
    "patch_size": (1, 2, 2),
}


def _fresh(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_tensor_restarts_at_the_seed():
    conditions = [
        VisualCondition(kind="image", latent_height=8, latent_width=4),
        VisualCondition(kind="video", latent_height=4, latent_width=4, latent_frames=5),
    ]
    drawn = noise.draw(42, **SIZES, visual_conditions=conditions)
    assert torch.equal(drawn.video_rows, patchify_video(_fresh(42, 1, 4, 7, 4, 6), (1, 2, 2)))
    assert torch.equal(drawn.audio_rows, _fresh(42, 18, 6))
    # Conditions are drawn over the target's frames plus one for each of them, then cut.
    assert torch.equal(drawn.conditions[0], _fresh(42, 1, 4, 9, 8, 4)[:, :, :1])
    assert torch.equal(drawn.conditions[1], _fresh(42, 1, 4, 9, 4, 4)[:, :, :5])


def test_a_condition_longer_than_the_target_has_noise_of_its_length():
    long = VisualCondition(kind="video", latent_height=4, latent_width=4, latent_frames=22)
    assert noise.draw(1, **SIZES, visual_conditions=[long]).conditions[0].shape == (1, 4, 22, 4, 4)


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(3)
    first = noise.draw(5, **SIZES)
    state = torch.get_rng_state()
    torch.manual_seed(4)
    second = noise.draw(5, **SIZES)
    assert torch.equal(first.video_rows, second.video_rows)
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_is_other_noise():
    assert not torch.equal(noise.draw(42, **SIZES).audio_rows, noise.draw(43, **SIZES).audio_rows)


def test_external_noise_is_taken_as_latents_or_rows():
    video = torch.randn(1, 4, 7, 4, 6)
    audio = torch.randn(18, 6)
    a = noise.external(video, audio, patch_size=(1, 2, 2))
    b = noise.external(a.video_rows, audio, patch_size=(1, 2, 2))
    assert torch.equal(a.video_rows, patchify_video(video, (1, 2, 2)))
    assert torch.equal(a.video_rows, b.video_rows)


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(InvalidRequest, match="seed"):
        noise.draw(seed, **SIZES)


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63 - 1])
def test_every_int64_draws_its_own_noise(seed):
    a, b = noise.draw(seed, **SIZES), noise.draw(seed + 1 if seed < 0 else seed - 1, **SIZES)
    assert torch.equal(a.video_rows, noise.draw(seed, **SIZES).video_rows)
    assert not torch.equal(a.video_rows, b.video_rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_external_noise_is_kept_in_float32_whatever_it_comes_in(dtype):
    video, audio, condition = torch.randn(1, 4, 2, 4, 4), torch.randn(6, 8), torch.randn(1, 4, 1, 4, 4)
    given = noise.external(video.to(dtype), audio.to(dtype), [condition.to(dtype)], patch_size=(1, 2, 2))
    assert {x.dtype for x in (given.video_rows, given.audio_rows, *given.conditions)} == {torch.float32}
    assert torch.equal(given.audio_rows, audio.to(dtype).float())
