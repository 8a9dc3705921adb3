"""Windows in seconds -> frames, samples, latents and rows."""

import numpy as np
import pytest
import torch

from talkies.errors import InvalidRequest
from talkies.h3.geometry import Limits, geometry_of, latent_frames_of
from talkies.h3.layout import Role
from talkies.h3.locks import LockedLatents, Span, check_covers, frames_of_lock, latent_of_frame, plan_lock
from talkies.h3.packing import build_layout
from talkies.h3.positions import FRAME_SPANS
from talkies.request import Condition

LIMITS = Limits()
CLIP = geometry_of(768, 768, 124, LIMITS)


def footage(**times):
    return plan_lock(Condition(kind="video", uri="a.mp4", role="footage", **times), CLIP, LIMITS)


def soundtrack(**times):
    return plan_lock(Condition(kind="audio", uri="a.wav", role="soundtrack", **times), CLIP, LIMITS)


def test_latent_frames_stand_for_the_frames_of_their_positions():
    for num_frames in (22, 124, 362):
        latents = latent_frames_of(num_frames, LIMITS)
        spans = [FRAME_SPANS[i % len(FRAME_SPANS)] for i in range(latents)]
        expected = np.repeat(np.arange(latents), spans)
        assert [latent_of_frame(frame, LIMITS) for frame in range(num_frames)] == expected.tolist()


def test_without_a_window_all_is_kept():
    assert footage().keeps_all
    assert footage().kept_latents == (Span(0, 37),)
    assert footage().kept_rows(CLIP) == (Span(0, 37 * 576),)
    assert soundtrack().kept_rows(CLIP) == (Span(0, 207), Span(207, 414))


def test_a_latent_that_the_window_touches_is_made_whole():
    plan = soundtrack(start_time_s=1.01, end_time_s=2.0)
    assert plan.made == (32_320, 64_000)
    assert plan.made_latents == (40, 80)
    assert plan.kept_rows(CLIP) == (Span(0, 40), Span(80, 207), Span(207, 247), Span(287, 414))
    plan = footage(start_time_s=1.0, end_time_s=2.0)
    assert (plan.made, plan.made_latents) == ((24, 48), (7, 15))  # frame 47 is the fifth latent frame of its 17
    assert plan.kept_rows(CLIP) == (Span(0, 7 * 576), Span(15 * 576, 37 * 576))


def test_either_end_may_be_left_out():
    assert footage(start_time_s=5.0).made == (120, 124)
    assert footage(start_time_s=5.0).kept_latents == (Span(0, 36),)
    assert footage(end_time_s=0.04).made == (0, 1)
    assert soundtrack(start_time_s=1.0).made == (32_000, 165_333)
    assert soundtrack(start_time_s=1.0).made_latents == (40, 207)


def test_the_length_that_is_printed_is_the_end():
    assert footage(start_time_s=1.0, end_time_s=5.167) == footage(start_time_s=1.0)
    with pytest.raises(InvalidRequest, match=r"5\.2 is outside the clip of 5\.167 s"):
        footage(end_time_s=5.2)


def test_a_lock_covers_the_longest_legal_length():
    assert frames_of_lock(5.167, LIMITS) == 124
    assert frames_of_lock(5.16, LIMITS) == 124  # half a frame may lack
    assert frames_of_lock(5.14, LIMITS) == 107
    assert frames_of_lock(60.0, LIMITS) == 362
    with pytest.raises(InvalidRequest, match=r"has 4\.00 s, the shortest clip 4\.46 s"):
        frames_of_lock(4.0, LIMITS)
    check_covers("footage", 5.15, CLIP, LIMITS)
    with pytest.raises(InvalidRequest, match=r"at most 107 frames \(4\.458 seconds\)"):
        check_covers("footage", 5.13, CLIP, LIMITS)


def test_a_layout_splits_the_targets_rows_by_role_alone():
    sizes = {"latent_frames": 7, "latent_height": 4, "latent_width": 6, "audio_latents": 9, "patch_size": (1, 2, 2)}
    plain = build_layout(text_tags=torch.ones(3), **sizes)
    locked = LockedLatents(video=(Span(0, 2), Span(5, 7)), audio=(Span(0, 4),))
    layout = build_layout(text_tags=torch.ones(3), locked=locked, **sizes)
    assert torch.equal(layout.positions, plain.positions)
    assert torch.equal(layout.tags, plain.tags)
    assert (layout.num_video_rows, layout.num_audio_rows) == (7 * 6, 18)
    assert [(s.role, s.stop - s.start) for s in layout.segments[1:]] == [
        (Role.AUDIO_LOCKED, 4),
        (Role.AUDIO_TARGET, 5),
        (Role.AUDIO_LOCKED, 4),
        (Role.AUDIO_TARGET, 5),
        (Role.VIDEO_LOCKED, 12),
        (Role.VIDEO_TARGET, 18),
        (Role.VIDEO_LOCKED, 12),
    ]
    assert [s.source for s in layout.segments[1:]] == [0, 4, 9, 13, 0, 12, 30]
    assert torch.equal(layout.video_indices, plain.video_indices)
    assert [s.role for s in plain.segments] == [Role.TEXT, Role.AUDIO_TARGET, Role.VIDEO_TARGET]
