from __future__ import annotations

import pytest
import torch

from talkies.h3.packing import patchify_video
from talkies.sampling.anchors import build_anchors, noised

SIZES = {"patch_size": (1, 2, 2), "video_row_dim": 16, "audio_channels": 6}


@pytest.mark.parametrize("num_rows", [1, 63, 414, 1009])
def test_condition_rows_survive_every_step(num_rows):
    clean, noise = torch.randn(1, 4, 3, 4, 6), torch.randn(1, 4, 3, 4, 6)
    sound = torch.randn(14, 6)
    anchors = build_anchors([clean], [noise], [sound], **SIZES)
    video, audio = anchors.assemble(torch.randn(num_rows, 16), torch.randn(num_rows, 6))
    assert video.shape == (18 + num_rows, 16)
    targets = video[18:].clone(), audio[14:].clone()
    for damage in (float("nan"), 1.0, -0.0):
        video[:18].fill_(damage)
        audio[:14].fill_(damage)
        anchors.pin(video, audio)
        assert torch.equal(video[:18], patchify_video(noised(clean, noise), (1, 2, 2)))
        assert torch.equal(audio[:14], sound)
        assert torch.equal(video[18:], targets[0])
        assert torch.equal(audio[14:], targets[1])


def test_visual_conditions_keep_a_thousandth_of_noise():
    clean, noise = torch.ones(1, 4, 1, 2, 2), torch.full((1, 4, 1, 2, 2), 11.0)
    torch.testing.assert_close(noised(clean, noise), torch.full_like(clean, 1.01))
    assert noised(clean.half(), noise).dtype == torch.float32


def test_a_text_only_request_has_no_anchors():
    anchors = build_anchors([], [], [], **SIZES)
    noise = torch.randn(5, 16), torch.randn(4, 6)
    video, audio = anchors.assemble(*noise)
    anchors.pin(video, audio)
    assert torch.equal(video, noise[0])
    assert torch.equal(audio, noise[1])


def test_rows_of_a_condition_are_float32_whatever_they_came_in():
    """State of the sampler is float32: a row in another precision would make all rows of it so."""
    clean, noise, sound = torch.randn(1, 4, 1, 2, 2), torch.randn(1, 4, 1, 2, 2), torch.randn(3, 6)
    anchors = build_anchors([clean.half()], [noise], [sound.half(), sound.double()], **SIZES)
    video, audio = anchors.assemble(torch.randn(2, 16), torch.randn(2, 6))
    assert video.dtype == audio.dtype == torch.float32
    assert torch.equal(audio[3:6], sound)
