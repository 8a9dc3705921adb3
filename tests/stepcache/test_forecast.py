"""Schedules made offline: the cheapest one is found, and what is left out is forecast stream by stream."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from talkies.errors import ConfigError
from talkies.stepcache import registry
from talkies.stepcache.schedule import best_runs, gap_costs, gram
from tests.stepcache.runs import Runs

N = 8
VIDEO = [1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.5, 0.3, 0.0]
AUDIO = [1.0, 0.9, 0.8, 0.65, 0.55, 0.4, 0.25, 0.1, 0.0]


def random_velocities(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(40, generator=generator) for _ in range(N)]


def displaced(velocities, sigmas, runs, order):
    """By the definition: rows after each gap, with forecast velocities and with the true ones, apart."""
    costs = []
    for number, (i, j) in enumerate(pairwise(runs)):
        off = torch.zeros(40, dtype=torch.float64)
        for k in range(i + 1, j):
            v = velocities[i].double()
            if order and number:
                h = runs[number - 1]
                slope = (velocities[i].double() - velocities[h].double()) / (sigmas[i] - sigmas[h])
                v = v + slope * (sigmas[k] - sigmas[i])
            off += (v - velocities[k].double()) * (sigmas[k] - sigmas[k + 1])
        costs.append(float(off.square().mean()))
    return costs


@pytest.mark.parametrize("order", [0, 1])
def test_the_cost_of_a_gap_is_how_far_the_rows_are_off_after_it(order):
    velocities = random_velocities()
    costs = gap_costs(gram(velocities), VIDEO, order)
    for runs in ([0, 3, 7], [0, 1, 2, 6, 7], [0, 7]):
        ways = zip([0, *runs], runs, runs[1:], strict=False)
        want = displaced(velocities, VIDEO, runs, order)
        assert [costs[way] for way in ways] == pytest.approx(want, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("num_runs", range(2, N + 1))
def test_the_schedule_is_the_cheapest_of_all(num_runs):
    costs = np.sqrt(gap_costs(gram(random_velocities(3)), VIDEO, 1))

    def total(runs):
        return sum(costs[way] for way in zip([0, *runs], runs, runs[1:], strict=False))

    every = [(0, *inner, N - 1) for inner in combinations(range(1, N - 1), num_runs - 2)]
    runs, cost = best_runs(costs, num_runs)
    assert len(runs) == num_runs
    assert cost == pytest.approx(min(map(total, every)))
    assert total(runs) == pytest.approx(cost)


def test_more_runs_than_forwards_are_no_schedule():
    with pytest.raises(ValueError, match="9 of 8"):
        best_runs(np.zeros((N, N, N)), 9)


def begun(sigmas=(VIDEO, AUDIO), **parameters):
    cache = registry.create("forecast", parameters)
    course = Runs(N).course()
    cache.begin(
        type(course)(
            layout=course.layout, num_blocks=3, video_sigmas=tuple(sigmas[0][:-1]), audio_sigmas=tuple(sigmas[1][:-1])
        )
    )
    return cache


def line(sigmas, step):
    """A velocity that is linear in the noise level."""
    return torch.tensor([2.0, -1.0]) + torch.tensor([0.5, 3.0]) * sigmas[step]


def test_each_stream_is_forecast_over_its_own_noise_level():
    cache = begun(runs=[0, 2, 7], video_order=1, audio_order=0)
    given = {}
    for step in range(N):
        found = cache.velocities(step)
        assert (found is None) == (step in (0, 2, 7))
        if found is None:
            given[step] = line(VIDEO, step), line(AUDIO, step)
            cache.observe(step, *given[step])
        else:
            last = max(s for s in given if s < step)
            want = line(VIDEO, step) if len(given) > 1 else given[last][0]
            assert found[0].tolist() == pytest.approx(want.tolist(), abs=1e-5)
            assert torch.equal(found[1], given[last][1])


def test_it_goes_on_from_what_was_saved():
    whole, broken, resumed = (begun(runs=[0, 2, 4, 7]) for _ in range(3))
    for step in range(N):
        pair = line(VIDEO, step) ** 2, line(AUDIO, step) ** 2
        found = whole.velocities(step)
        if step == 5:
            resumed.restore({name: tensor.clone() for name, tensor in broken.saved().items()})
        cache = broken if step < 5 else resumed
        again = cache.velocities(step)
        assert (found is None) == (again is None)
        if found is None:
            whole.observe(step, *pair)
            cache.observe(step, *pair)
        else:
            assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    with pytest.raises(ValueError, match="no velocities"):
        begun(runs=[0, 7]).restore({})


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"runs": [0, 3]}, "4 forwards, and the request has 8"),
        ({"runs": [0, 3, 9]}, "10 forwards"),
        ({"runs": [1, 7]}, "ascend from 0"),
        ({"runs": [0, 4, 2, 7]}, "ascend from 0"),
        ({"runs": []}, "ascend from 0"),
        ({"runs": [0, 7], "audio_order": 3}, "audio_order=3"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(parameters, word):
    with pytest.raises(ConfigError, match=word):
        begun(**parameters)
