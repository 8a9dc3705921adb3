"""Numbers in refusals lie inside what is allowed, and are accepted as they were printed."""

import re
from dataclasses import replace

import pytest

from talkies.errors import InvalidRequest
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Limits, printed_range, snap_frames
from talkies.request import Target, VideoRequest
from talkies.values import check_number, plain

RELEASED = Limits()
SMALL = replace(Limits(), min_seconds=22 / 24, max_seconds=124 / 24, max_frames=124, default_num_frames=56)


def frames(seconds, limits):
    return plan(VideoRequest(prompt="x", target=Target(seconds=seconds)), limits).num_frames


@pytest.mark.parametrize(
    ("low", "high", "printed"),
    [
        (4.0, 15.0, ("4", "15")),
        (22 / 24, 124 / 24, ("0.917", "5.166")),
        (0.9, 6.0, ("0.9", "6")),
        (1.0005, 2.0005, ("1.001", "2")),
    ],
)
def test_a_range_is_rounded_inwards(low, high, printed):
    assert printed_range(low, high) == printed
    assert low <= float(printed[0]) <= float(printed[1]) <= high


@pytest.mark.parametrize("limits", [RELEASED, SMALL])
def test_what_a_refusal_prints_is_accepted(limits):
    with pytest.raises(InvalidRequest) as caught:
        frames(99, limits)
    low, high = re.search(r"outside ([\d.]+)\.\.([\d.]+)$", caught.value.message).groups()
    assert frames(float(low), limits) == limits.min_frames
    assert frames(float(high), limits) == limits.max_frames


@pytest.mark.parametrize("limits", [RELEASED, SMALL])
def test_the_printed_length_of_every_clip_makes_that_clip(limits):
    """15 s of the released model are 362 frames, which are 15.083 s."""
    legal = [n for n in range(limits.min_frames, limits.max_frames + 1) if snap_frames(n, limits) == n]
    assert len(legal) > 6
    for n in legal:
        for digits in (3, 4, 6):
            assert frames(round(n / limits.fps, digits), limits) == n
        assert frames(float(f"{n / limits.fps:g}"), limits) == n


@pytest.mark.parametrize("seconds", [3.99, 15.01, 15.07, 15.09, 16])
def test_a_length_that_no_clip_has_is_refused_as_before(seconds):
    with pytest.raises(InvalidRequest, match=r"outside 4\.\.15"):
        frames(seconds, RELEASED)


def test_a_number_is_not_shortened_to_one_that_is_allowed():
    assert (plain(5.0), plain(0.1), plain(1000.0001), plain(5.1675)) == ("5", "0.1", "1000.0001", "5.1675")
    with pytest.raises(InvalidRequest, match=r"x=1000\.0001 is outside"):
        check_number("x", 1000.0001, 0, 1000)
