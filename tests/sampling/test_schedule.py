from __future__ import annotations

import itertools

import pytest
import torch

from talkies.errors import ConfigError, InvalidRequest
from talkies.sampling.schedule import build_dual
from talkies.values import MAX_SHIFT, MAX_SIGMAS, MIN_SHIFT, MIN_SIGMAS


def test_released_grid_values():
    schedule = build_dual(50)
    assert (schedule.num_sigmas, schedule.num_forwards) == (50, 49)
    video, audio = schedule.video_sigmas.tolist(), schedule.audio_sigmas.tolist()
    assert video[:4] == pytest.approx([1, 0.9982669, 0.9964665, 0.9945946], abs=1e-7)
    assert video[-4:] == pytest.approx([0.4390244, 0.3380282, 0.2, 0], abs=1e-7)
    assert audio[:4] == pytest.approx([1, 0.9931034, 0.9860140, 0.9787234], abs=1e-7)
    assert audio[-4:] == pytest.approx([0.1636364, 0.1132075, 0.0588235, 0], abs=1e-7)
    assert len({*schedule.t_video.tolist(), *schedule.t_audio.tolist()}) == 97


def test_a_step_knows_where_it_goes():
    schedule = build_dual(4)
    steps = list(schedule)
    assert len(steps) == 3
    assert steps[-1].video.sigma_next == 0
    assert steps[-1].audio.sigma_next == 0
    for before, after in itertools.pairwise(steps):
        assert before.video.sigma_next == after.video.sigma
        assert before.audio.t == 1 - before.audio.sigma
    for step in (3, -1):
        with pytest.raises(IndexError):
            schedule.step(step)


def test_distilled_ladders_are_used_point_by_point():
    schedule = build_dual(base=[0.999, 0.749, 0.5, 0.25, 0])
    assert schedule.num_forwards == 4
    assert schedule.video_sigmas.tolist() == pytest.approx([0.9999166, 0.9728325, 0.9230769, 0.8, 0], abs=1e-7)
    assert schedule.audio_sigmas.tolist() == pytest.approx([0.9996664, 0.8995196, 0.75, 0.5, 0], abs=1e-7)
    assert build_dual(5, base=[1.0, 0.7, 0.4, 0.15, 0.0]).num_forwards == 4


def test_equal_schedules_have_equal_keys():
    assert build_dual(20).key == build_dual(20).key
    assert build_dual(20).key != build_dual(20, audio_shift=4.0).key


@pytest.mark.parametrize("num_sigmas", [None, 1, 0, -3])
def test_too_few_points_are_refused(num_sigmas):
    with pytest.raises(InvalidRequest, match="terminal 0"):
        build_dual(num_sigmas)


def test_every_usual_number_of_points_keeps_both_modalities_in_step():
    for num_sigmas in range(2, 201):
        assert build_dual(num_sigmas).num_sigmas == num_sigmas


@pytest.mark.parametrize("shift", [MIN_SHIFT, MAX_SHIFT])
def test_the_extreme_shifts_that_a_request_may_have_keep_every_point(shift):
    for num_sigmas in range(MIN_SIGMAS, MAX_SIGMAS + 1):
        schedule = build_dual(num_sigmas, video_shift=shift, audio_shift=shift)
        assert schedule.num_sigmas == num_sigmas
        assert torch.isfinite(torch.tensor([step.video.factors for step in schedule])).all()


@pytest.mark.parametrize(
    ("base", "shift"), [((1.0, 0.99999994, 0.0), MAX_SHIFT), ((1.0, 1e-38, 0.0), 1e-8), ((1.0, 1e-38, 0.0), 1e-300)]
)
def test_a_ladder_that_a_shift_collapses_is_refused(base, shift):
    with pytest.raises(InvalidRequest, match="audio_shift"):
        build_dual(base=base, video_shift=1.0, audio_shift=shift)


def test_a_collapse_of_one_modality_alone_is_refused():
    with pytest.raises(InvalidRequest, match="distinct video"):
        build_dual(200, video_shift=1e6)


def test_a_distilled_checkpoint_does_not_take_another_length():
    with pytest.raises(InvalidRequest, match="distilled for 3"):
        build_dual(20, base=[1.0, 0.5, 0.0])


@pytest.mark.parametrize("base", [[1.0], [1.0, 0.5], [1.0, 0.5, 0.5, 0.0], [0.0, 1.0], [1.5, 0.5, 0.0], []])
def test_an_impossible_ladder_is_refused(base):
    with pytest.raises(ConfigError, match="must fall strictly"):
        build_dual(base=base)


@pytest.mark.parametrize("shift", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_shift_is_refused(shift):
    with pytest.raises(ConfigError, match="audio_shift"):
        build_dual(5, audio_shift=shift)


def test_extreme_shifts_of_one_keep_the_plain_grid():
    schedule = build_dual(9, video_shift=1.0, audio_shift=1.0)
    assert torch.equal(schedule.video_sigmas, torch.linspace(1, 0, 9))
