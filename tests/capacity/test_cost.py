"""Predicted cost, from measured figures."""

import itertools

import pytest

from talkies.capacity.cost import CostModel, Size, predict, saturation_rows, saturation_samples, size_of
from talkies.capacity.demand import demand_of
from talkies.errors import InvalidRequest
from talkies.h3.geometry import Limits
from talkies.request import Target, VideoRequest

LIMITS = Limits(min_seconds=0.9)


def model(**changes):
    return CostModel(**{"step_s": 0.1, "row_s": 0.001, "pixel_s": 0.0, "begin_s": 0.0, **changes})


def test_a_fit_recovers_a_line():
    fitted = CostModel.fit([(1000, 1.1), (3000, 3.1)], pixel_s=1e-9, begin_s=0.2)
    assert fitted.forward_s(2000) == pytest.approx(2.1)
    assert fitted.step_s == pytest.approx(0.1)
    assert fitted.max_step_rows == 1000  # from there on the fixed 0.1 s is under a tenth of the rest


def test_noise_never_makes_rows_free():
    fitted = CostModel.fit([(1000, 1.0), (3000, 0.9)], pixel_s=0.0, begin_s=0.0)
    assert fitted.row_s > 0
    assert fitted.step_s >= 0
    one = CostModel.fit([(1000, 1.0)], pixel_s=0.0, begin_s=0.0)
    assert one.forward_s(500) == pytest.approx(0.5)
    assert one.max_step_rows == 1


def test_seconds_grow_with_steps_length_and_outputs():
    def seconds(request):
        return predict(model(), demand_of(request, LIMITS))

    def size(request):
        return size_of(demand_of(request, LIMITS))

    request = VideoRequest(prompt="x", num_sigmas=11, target=Target(num_frames=124))
    base = seconds(request)
    assert base == pytest.approx(10 * model().forward_s(size(request).rows))
    assert seconds(request.replace(num_sigmas=21)) == pytest.approx(2 * base)
    assert seconds(request.replace(num_outputs=3)) == pytest.approx(3 * base)
    assert size(request.replace(num_outputs=3)).pixels == 3 * size(request).pixels
    assert seconds(request.replace(target=Target(num_frames=209))) > 1.5 * base


def test_nothing_is_promised_before_a_measurement_or_for_a_refused_request():
    assert predict(None, demand_of(VideoRequest(prompt="x"), LIMITS)) is None
    with pytest.raises(InvalidRequest, match="seconds=60"):
        demand_of(VideoRequest(prompt="x", target=Target(seconds=60)), LIMITS)


def test_what_is_left_is_forwards_at_their_present_pace_and_pixels():
    assert model(pixel_s=0.01).left_s(num_forwards=3, step_s=2.0, pixels=50) == pytest.approx(6.5)


def test_finished_jobs_correct_the_model_slowly():
    size = Size(rows=1000, num_forwards=10, pixels=0)
    learned = model()
    for _ in range(40):
        learned = learned.learned(size, took_s=22.0)
    assert learned.seconds(size) == pytest.approx(22.0, rel=0.01)
    assert model().learned(size, took_s=1e9).seconds(size) < 4 * model().seconds(size)  # one outlier is not believed


def test_the_saturation_point_of_a_line_is_where_its_fixed_part_is_a_tenth():
    line = [(rows, 0.1 + 0.001 * rows) for rows in (500, 1000, 2000, 4000)]
    assert saturation_rows(line) == 1000
    assert (
        saturation_rows([(rows, 0.1 + 0.001 * rows) for rows in (250, 500)]) == 1000
    )  # beyond the samples, along the last line
    assert saturation_rows([(rows, 0.1 + 0.001 * rows) for rows in (3000, 6000)]) == 3000  # full with one request


def test_a_floor_of_launches_ends_where_rows_begin_to_cost():
    """What two lengths of one clip cannot show: both take the time of a chain of kernels."""

    def forward(rows):
        return rows, max(0.3, 0.001 * rows)

    for one in range(20, 60, 7):
        taken = list(saturation_samples(lambda n, one=one: forward(one * n), 256))
        assert saturation_rows(taken) == pytest.approx(300 / 1.1, rel=0.2)
        assert saturation_rows([forward(one * n) for n in range(1, 33)]) == pytest.approx(300 / 1.1, rel=0.05)


def test_a_warm_up_ends_beyond_the_point_it_seeks():
    def counts(fixed, most=256, **limits):
        seen = []

        def measure(count):
            seen.append(count)
            return 100 * count, fixed + 0.001 * 100 * count

        assert len(list(saturation_samples(measure, most, **limits))) == len(seen)
        once, again = seen[: len(seen) // 2], seen[len(seen) // 2 :]
        assert again == sorted(once)
        return once

    assert counts(0.0) == [1, 2]  # full with one request
    assert counts(0.1) == [1, 2, 4, 8, 16, 32, 12, 24]  # ten are enough
    assert counts(0.1, most=5) == [1, 2, 4, 5, 3]
    assert counts(0.1, longest_s=0.35) == [1, 2, 4, 3]
    assert counts(0.1, most=1) == [1]


# Milliseconds of an H200 for so many clips of 675 rows, replayed from CUDA graphs, on four cards.
# fmt: off
CLIPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MILLISECONDS = (
    (0.504, 0.556, 0.603, 0.603, 0.756, 0.833, 1.009, 1.206, 1.611, 2.307, 2.909, 3.919, 4.992, 6.672, 9.334, 12.895),
    (0.452, 0.520, 0.548, 0.558, 0.707, 0.762, 1.006, 1.166, 1.691, 2.083, 2.935, 3.685, 4.947, 6.370, 9.217, 12.165),
    (0.450, 0.505, 0.529, 0.556, 0.753, 0.875, 1.080, 1.354, 1.751, 2.161, 3.002, 3.798, 5.289, 6.850, 9.871, 12.963),
    (0.538, 0.578, 0.678, 0.685, 0.703, 0.751, 0.950, 1.144, 1.756, 2.148, 2.729, 3.438, 4.915, 6.401, 9.265, 12.308),
)
# fmt: on
CARDS = [dict(zip(CLIPS, ms, strict=True)) for ms in MILLISECONDS]


def clips(ms):
    return [(675 * count, value) for count, value in ms.items()]


def test_a_warm_up_on_one_card_finds_what_all_forwards_of_another_show():
    """Though times are off by a tenth: 32 clips on the first card."""
    for seen, other in itertools.product(CARDS, CARDS):
        taken = list(saturation_samples(lambda n, seen=seen: (675 * n, seen[n]), 256))
        assert saturation_rows(taken) == pytest.approx(saturation_rows(clips(other)), rel=0.2)


def test_a_slower_way_of_running_large_forwards_is_a_limit_and_no_slope():
    """64 and 96 clips were too large for a graph."""
    replayed = {n: ms for n, ms in CARDS[1].items() if n <= 48}
    for slower in ({64: 5.2}, {64: 5.2, 96: 9.0}):
        assert saturation_rows(clips(replayed | slower)) == 675 * 48
    assert saturation_rows(clips(replayed)) > 675 * 48


def test_rows_that_cost_nothing_are_not_refused():
    assert saturation_rows([(100, 0.3), (200, 0.3)]) == 200
    assert saturation_rows([(100, 0.3)]) == 100
    assert saturation_rows([(100, 0.4), (100, 0.3), (200, 0.3)]) == 200
    assert model(full_rows=321).max_step_rows == 321
    assert model().max_step_rows == 1000
