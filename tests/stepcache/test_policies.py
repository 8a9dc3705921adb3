"""What teacache and block skip, and what they give then."""

from __future__ import annotations

from copy import copy
from itertools import pairwise

import pytest
import torch

from talkies.errors import ConfigError
from talkies.stepcache import registry
from talkies.stepcache.base import Forward, target_spans
from talkies.stepcache.distance import relative_l1
from talkies.stepcache.extrapolate import extrapolated, weights
from talkies.stepcache.teacache import modulated_input
from tests.stepcache.runs import Runs

OPEN = {
    "teacache": {"threshold": 1e9},
    "block": {"residual_diff_threshold": 1e9, "max_warmup_steps": 0},
}
SHUT = {
    "teacache": {"threshold": 0.0},
    "block": {"residual_diff_threshold": 0.0, "Bn_compute_blocks": 1, "max_warmup_steps": 0, "taylorseer_order": 1},
}


@pytest.mark.parametrize("name", SHUT)
def test_a_threshold_of_zero_is_off_bit_for_bit(name):
    runs = Runs(8, drift=0.0)  # the rows do not change at all: still nothing is skipped
    for step, (rows, blocks) in enumerate(runs.all(registry.create(name, SHUT[name]))):
        assert blocks == 3
        assert torch.equal(rows, runs.whole(step))


@pytest.mark.parametrize("name", OPEN)
def test_the_first_and_the_last_forward_run_whatever_the_threshold(name):
    runs = Runs(8)
    found = runs.all(registry.create(name, OPEN[name]))
    kept = 1 if name == "block" else 0
    assert [blocks for _, blocks in found] == [3, *[kept] * 6, 3]
    for step in (0, 7):
        assert torch.equal(found[step][0], runs.whole(step))


def test_teacache_adds_what_the_blocks_added_last_time_until_the_sum_is_over_the_threshold():
    runs = Runs(12)
    course = runs.course()
    inputs = [modulated_input(runs.embedded(i), Forward(runs.modulation(i), 3)) for i in range(4)]
    far = [max(relative_l1(b, a, course, Forward(runs.modulation(0), 3))) for a, b in pairwise(inputs)]
    threshold = far[0] + far[1] + far[2] / 2  # two are skipped, the third is not
    cache = registry.create("teacache", {"threshold": threshold})
    found = runs.all(cache)
    assert [blocks for _, blocks in found[:5]] == [3, 0, 0, 3, 0]
    first = found[0][0] - runs.embedded(0)
    assert torch.equal(found[2][0], runs.embedded(2) + first)
    assert torch.equal(found[3][0], runs.whole(3))


def test_teacache_rescales_by_its_polynomial_and_can_be_bounded():
    runs = Runs(10)
    every = registry.create("teacache", {"threshold": 0.5, "coefficients": [0, 0, 1]})  # each forward counts as 1
    assert [blocks for _, blocks in runs.all(every)] == [3] * 10
    twice = registry.create("teacache", {"threshold": 2.5, "coefficients": [0, 0, 1]})
    assert [blocks for _, blocks in runs.all(twice)] == [3, 0, 0, 3, 0, 0, 3, 0, 0, 3]
    one = registry.create("teacache", {"threshold": 1e9, "max_continuous_cached_steps": 1})
    assert [blocks for _, blocks in runs.all(one)] == [3, 0, 3, 0, 3, 0, 3, 0, 3, 3]


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize(
    ("name", "both", "sound"),
    [
        ("teacache", "threshold", "audio_threshold"),
        ("block", "residual_diff_threshold", "audio_residual_diff_threshold"),
    ],
)
def test_a_forward_is_skipped_only_if_picture_and_sound_are_both_near(name, both, sound, stream):
    runs = Runs(6)
    more = {"max_warmup_steps": 0} if name == "block" else {}
    thresholds = {both: 0.0 if stream == 0 else 1e9, sound: 1e9 if stream == 0 else 0.0}
    assert [blocks for _, blocks in runs.all(registry.create(name, {**thresholds, **more}))] == [3] * 6


def test_block_counts_its_warm_up_and_its_cached_forwards():
    runs = Runs(12)

    def blocks(**parameters):
        cache = registry.create("block", {"residual_diff_threshold": 1e9, **parameters})
        return [count for _, count in runs.all(cache)]

    assert blocks(max_warmup_steps=4) == [3, 3, 3, 3, *[1] * 7, 3]
    assert blocks(max_warmup_steps=1, max_continuous_cached_steps=2) == [3, 1, 1, 3, 1, 1, 3, 1, 1, 3, 1, 3]
    assert blocks(max_warmup_steps=1, max_cached_steps=3) == [3, 1, 1, 1, *[3] * 8]
    assert blocks(max_warmup_steps=1, Bn_compute_blocks=1) == [3, *[2] * 10, 3]


def test_block_adds_the_middle_of_the_last_whole_forward_between_the_blocks_that_run():
    runs = Runs(6)
    parameters = {"residual_diff_threshold": 1e9, "max_warmup_steps": 1, "Bn_compute_blocks": 1}
    found = runs.all(registry.create("block", parameters))
    run = lambda x, step, start, stop: runs.dit.run_blocks(x, runs.view, runs.modulation(step), start, stop)  # noqa: E731
    y0 = run(runs.embedded(0), 0, 0, 1)
    middle = run(y0, 0, 1, 2) - y0
    y3 = run(runs.embedded(3), 3, 0, 1)
    assert torch.equal(found[3][0], run(y3 + middle, 3, 2, 3))


def test_a_forecast_of_the_middle_is_nearer_than_its_repetition():
    runs = Runs(9, drift=0.01)

    def error(order):
        parameters = {"residual_diff_threshold": 1e9, "max_warmup_steps": 3, "taylorseer_order": order}
        rows = runs.all(registry.create("block", parameters))[4][0]
        return float((rows - runs.whole(4)).norm())

    assert error(1) < 0.5 * error(0)


def test_block_refuses_what_leaves_nothing_to_skip():
    cache = registry.create("block", {"residual_diff_threshold": 0.1, "Fn_compute_blocks": 2, "Bn_compute_blocks": 1})
    runs = Runs(4)
    cache.begin(runs.course())
    with pytest.raises(ConfigError, match="leave nothing of 3 blocks"):
        runs.forward(cache, 0)


@pytest.mark.parametrize("name", OPEN)
def test_what_is_no_number_runs(name):
    runs = Runs(5)
    cache = registry.create(name, OPEN[name])
    cache.begin(runs.course())
    runs.forward(cache, 0)
    runs.calls = []
    runs.forward(cache, 1, x=torch.full_like(runs.embedded(1), float("nan")))
    assert sum(stop - start for start, stop in runs.calls) == 3


@pytest.mark.parametrize("stop_at", [1, 4, 6])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("teacache", {"threshold": 2.5, "coefficients": [0, 0, 1]}),
        ("block", {"residual_diff_threshold": 1e9, "max_warmup_steps": 2, "max_continuous_cached_steps": 2}),
        (
            "block",
            {
                "residual_diff_threshold": 1e9,
                "max_warmup_steps": 3,
                "max_continuous_cached_steps": 1,
                "Bn_compute_blocks": 1,
                "taylorseer_order": 1,
            },
        ),
    ],
)
def test_what_was_saved_and_learned_again_goes_on_bit_for_bit(name, parameters, stop_at):
    runs = Runs(10)
    whole = runs.all(registry.create(name, parameters))
    before, after = registry.create(name, parameters), registry.create(name, parameters)
    for cache in (before, after):
        cache.begin(runs.course())
    for step in range(stop_at):
        runs.forward(before, step)
    after.restore(before.saved())
    for step in before.needs():
        runs.forward(after, step, method="relearn")
    for step in range(stop_at, 10):
        runs.calls = []
        assert torch.equal(runs.forward(after, step), whole[step][0]), step
        assert sum(stop - start for start, stop in runs.calls) == whole[step][1]


@pytest.mark.parametrize("name", OPEN)
def test_a_forward_that_fails_on_a_copy_leaves_the_policy_as_it_was(name):
    runs = Runs(6)
    cache = registry.create(name, SHUT[name])
    cache.begin(runs.course())
    runs.forward(cache, 0)
    before = dict(vars(cache))
    values = {key: list(value) for key, value in before.items() if isinstance(value, list)}
    runs.forward(copy(cache), 1)
    assert all(value is vars(cache)[key] for key, value in before.items())
    assert all(len(value) == len(vars(cache)[key]) for key, value in values.items())
    assert all(a is b or a == b for key in values for a, b in zip(values[key], vars(cache)[key], strict=True))


def test_distances_are_of_the_rows_that_are_denoised_and_the_same_from_any_share():
    runs = Runs()
    layout, course = runs.layout, runs.course()
    now, before = torch.randn(layout.num_rows, 8), torch.randn(layout.num_rows, 8)
    want = []
    for spans in target_spans(layout, 0, layout.num_rows):
        rows = torch.cat([torch.arange(*span) for span in spans])
        want.append(float((now[rows] - before[rows]).abs().mean() / before[rows].abs().mean()))
    assert len(want) == 2
    run = Forward(runs.modulation(0), 3)
    assert relative_l1(now, before, course, run) == pytest.approx(want)
    now[:11] = 1e9  # text and the keyframe after it
    assert relative_l1(now, before, course, run) == pytest.approx(want)
    cut = layout.num_rows // 2
    parts = []
    for start, stop in ((0, cut), (cut, layout.num_rows)):
        keep = lambda sums: parts.append(sums) or sums  # noqa: E731
        relative_l1(now[start:stop], before[start:stop], course, Forward(runs.modulation(0), 3, start, keep))
    assert (sum(parts)[:, 0] / sum(parts)[:, 1]).tolist() == pytest.approx(want)


def test_extrapolation_is_exact_for_polynomials_of_its_order():
    points = [0.9, 0.7, 0.4]
    values = [torch.tensor([p**2, p, 1.0]) for p in points]
    assert extrapolated(points, values, 0.1).tolist() == pytest.approx([0.01, 0.1, 1.0], abs=1e-6)
    assert weights([0.5], 0.1) == [1.0]
    assert extrapolated([0.5], values[:1], 0.1) is values[0]
