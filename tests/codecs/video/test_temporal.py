from __future__ import annotations

import pytest
import torch

from talkies.codecs.video.temporal import TemporalPlan
from talkies.errors import InvalidRequest

RELEASE = TemporalPlan(clip_frames=17, factor=4, token_drop=3)


def window_of(latents: torch.Tensor) -> torch.Tensor:
    """A stand-in decoder: each latent becomes four frames of its own value."""
    return latents.repeat_interleave(4, dim=2)[:, :3].clone()


def test_the_release_has_clips_of_five_latents_and_a_tail_of_five_frames():
    assert RELEASE.clip_latents == 5
    assert RELEASE.overlap_latents == 2
    assert RELEASE.overlap_frames == 5
    assert RELEASE.min_latents == 7


@pytest.mark.parametrize(("latents", "frames"), [(7, 22), (12, 39), (37, 124), (62, 209)])
def test_legal_lengths_decode_to_17n_plus_5(latents, frames):
    z = torch.randn(1, 4, latents, 2, 2)
    chunks = [chunk.shape[2] for chunk in RELEASE.decode(z, window_of)]
    assert chunks == [17] * (frames // 17) + [5]
    assert RELEASE.frames_of(latents) == frames


@pytest.mark.parametrize("latents", [8, 9, 10, 11, 13])
def test_other_lengths_repeat_the_last_latent_and_cut_its_frames(latents):
    z = torch.randn(1, 4, latents, 2, 2)
    total = sum(chunk.shape[2] for chunk in RELEASE.decode(z, window_of))
    assert total == RELEASE.frames_of(latents)
    assert RELEASE.frames_of(latents - 1) < total or latents == 8


@pytest.mark.parametrize("latents", [1, 2])
def test_fewer_latents_than_one_window_are_refused(latents):
    with pytest.raises(InvalidRequest, match="at least 7"):
        list(RELEASE.decode(torch.zeros(1, 4, latents, 2, 2), window_of))


def test_clips_fade_into_each_other_over_five_frames():
    calls = iter(range(9))

    def decode_window(latents):
        return torch.full((1, 3, 4 * latents.shape[2], 2, 2), float(next(calls)))

    frames = torch.cat(list(RELEASE.decode(torch.zeros(1, 4, 12, 2, 2), decode_window)), dim=2)[0, 0, :, 0, 0]
    expected = [0.0] * 17 + [0.0, 0.2, 0.4, 0.6, 0.8] + [1.0] * 17
    torch.testing.assert_close(frames, torch.tensor(expected))


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (5, 2), (22, 7), (39, 12), (124, 37), (20, 7)])
def test_encoding_gives_5n_plus_2_latents(frames, latents):
    seen = []

    def encode_clip(clip):
        seen.append(clip.shape[2])
        return clip[:, :1, :: 4 if clip.shape[2] > 1 else 1]

    z = RELEASE.encode(torch.randn(1, 3, frames, 2, 2), encode_clip)
    assert z.shape[2] == latents
    assert set(seen) == ({1} if frames == 1 else {17})


def test_without_token_drop_clips_do_not_overlap():
    plan = TemporalPlan(clip_frames=16, factor=4, token_drop=0)
    z = torch.randn(1, 4, 8, 2, 2)
    assert [c.shape[2] for c in plan.decode(z, window_of)] == [16, 16]
