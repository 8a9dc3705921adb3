from __future__ import annotations

import pytest
import torch

from talkies.codecs.video.tiles import AxisPlan, TilePlan, cross_fade_, plan_axis


@pytest.mark.parametrize(
    ("length", "starts", "overlaps"),
    [
        (64, (0,), ()),
        (256, (0,), ()),
        (320, (0, 64), (192,)),
        (512, (0, 128, 256), (128, 128)),
        (768, (0, 160, 336, 512), (96, 80, 80)),
        (1344, (0, 176, 352, 528, 704, 896, 1088), (80, 80, 80, 80, 64, 64)),
    ],
)
def test_the_plan_is_the_released_table(length, starts, overlaps):
    plan = plan_axis(length, step=16)
    assert (plan.starts, plan.overlaps) == (starts, overlaps)


def test_a_2048_pixel_axis_takes_eleven_tiles():
    assert plan_axis(2048, step=16).overlaps == (80,) * 8 + (64, 64)


@pytest.mark.parametrize("step", [8, 16, 32])
@pytest.mark.parametrize("length", [32, 272, 448, 672, 1024, 2016])
def test_tiles_cover_the_axis_exactly_and_overlap_enough(length, step):
    length -= length % step
    plan = plan_axis(length, step=step)
    assert plan.starts[-1] + plan.size == length
    assert all(o >= 64 for o in plan.overlaps)
    assert all(s % step == 0 for s in plan.starts)
    ends = [s + plan.size for s in plan.starts]
    assert [e - s for e, s in zip(ends, plan.starts[1:], strict=False)] == list(plan.overlaps)


def test_stitching_the_tiles_of_one_picture_gives_it_back():
    picture = torch.randn(1, 3, 2, 480, 736)
    plan = TilePlan.of(480, 736, step=16)
    torch.testing.assert_close(plan.stitch(plan.cut(picture)), picture, rtol=0, atol=1e-6)


def test_a_corner_blends_raw_tiles():
    plan = TilePlan(y=AxisPlan(starts=(0, 2), size=4, overlaps=(2,)), x=AxisPlan(starts=(0, 2), size=4, overlaps=(2,)))
    tiles = [torch.full((4, 4), float(v)) for v in (1, 10, 100, 1000)]
    picture = plan.stitch(tiles)
    # (3, 3) is tile 4's second row and column: half of tile 2 above, then half of the raw tile 3 to the left.
    assert picture[3, 3] == (1000 * 0.5 + 10 * 0.5) * 0.5 + 100 * 0.5
    assert picture[2, 2] == 100  # weight 0 of our own in both directions: the raw left tile


def test_a_single_tile_is_returned_untouched():
    tile = torch.randn(1, 3, 2, 32, 48)
    assert TilePlan.of(32, 48, step=16).stitch([tile]) is tile


@pytest.mark.parametrize("extent", [1, 5])
def test_a_cross_fade_starts_with_what_came_before(extent):
    ours, before = torch.zeros(1, 7), torch.ones(1, 9)
    cross_fade_(ours, before, extent, dim=1)
    expected = [1 - k / extent for k in range(extent)] + [0.0] * (7 - extent)
    torch.testing.assert_close(ours[0], torch.tensor(expected))
