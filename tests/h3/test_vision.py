"""Sizes at which the text encoder sees pictures and videos, worked out by hand from the bounds of the release."""

from __future__ import annotations

import pytest

from talkies.errors import InvalidRequest
from talkies.h3.vision import VisionSizes, pair_timestamps, sample_indices

SIZES = VisionSizes()


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ((480, 640), (480, 640)),
        ((470, 650), (480, 640)),  # the nearest multiples of 32
        ((256, 256), (256, 256)),  # 65,536 is enough
        ((270, 250), (256, 256)),  # what counts is the area after rounding
        ((100, 40), (416, 192)),  # times sqrt(65,536 / 4,000) = 4.048: 12.65 and 5.06 multiples, rounded up
        ((40, 100), (192, 416)),
        ((4096, 4096), (4096, 4096)),  # 16,777,216 is not too much
        ((4090, 4100), (4096, 4096)),
        ((8000, 4000), (5792, 2880)),  # over sqrt(32,000,000 / 16,777,216) = 1.381: 181.02 and 90.5, rounded down
        ((40, 800_000), (32, 579_232)),  # and never to nothing
    ],
)
def test_a_picture_has_the_nearest_size_within_the_bounds(source, seen):
    assert SIZES.image_size(*source) == seen
    assert SIZES.image_grid(*source) == (1, seen[0] // 16, seen[1] // 16)
    assert SIZES.tokens_per_pair(SIZES.image_grid(*source)) == seen[0] * seen[1] // 1024


@pytest.mark.parametrize(
    ("frames", "source", "seen"),
    [
        (4, (480, 640), (480, 640)),
        (2, (16, 48), (32, 96)),  # the shorter side is brought to 32 first
        (2, (40, 40), (64, 64)),  # times sqrt(4,096 / 3,200) = 1.131: 1.41 multiples
        (4, (32, 32), (32, 32)),  # 4,096 is enough
        (4, (40, 33), (32, 32)),  # what counts is the volume after rounding
        (20, (1152, 2048), (832, 1472)),  # over sqrt(47,185,920 / 25,165,824) = 1.369: 26.3 and 46.7
        (24, (1024, 1024), (1024, 1024)),  # 25,165,824 is not too much
        (24, (1020, 1028), (1024, 1024)),
    ],
)
def test_a_video_has_the_nearest_size_within_the_bounds_on_its_volume(frames, source, seen):
    assert SIZES.video_size(frames, *source) == seen
    assert SIZES.video_grid(frames, *source) == (frames // 2, seen[0] // 16, seen[1] // 16)
    assert SIZES.video_grid(frames + 1, *source)[0] == frames // 2 + 1  # a frame without a partner is a pair, too


def test_frames_are_seen_twice_a_second_from_two_on():
    assert sample_indices(37, 24.0, SIZES) == [0, 12, 24, 36]
    assert sample_indices(36, 24.0, SIZES) == [0, 12, 24]
    assert sample_indices(13, 24.0, SIZES) == [0, 12]
    with pytest.raises(InvalidRequest, match=r"12 frames at 24 fps, at least 13 are needed") as caught:
        sample_indices(12, 24.0, SIZES)
    assert caught.value.hint == "use a clip of 0.54 seconds or longer"
    assert sample_indices(3, 1.0, SIZES) == [0, 1, 2]  # slower than that: each frame once


def test_a_pair_is_labelled_with_the_mean_of_its_times():
    assert pair_timestamps(4, SIZES) == [0.25, 1.25]
    assert pair_timestamps(3, SIZES) == [0.25, 1.0]
