from __future__ import annotations

import inspect

import pytest
import torch

from talkies.errors import ConfigError
from talkies.stepcache import registry
from talkies.stepcache.base import StepCache
from talkies.stepcache.lockstep import drive
from tests.stepcache.runs import Runs


def test_off_runs_all_blocks_once_in_each_forward():
    runs = Runs()
    cache = registry.create("off")
    cache.begin(runs.course(19))
    for step in range(3):
        assert torch.equal(runs.forward(cache, step), runs.whole(step))
    assert runs.calls == [(0, 3)] * 3


def test_a_policy_may_run_the_blocks_in_parts_and_sees_their_modulation():
    runs = Runs()

    class Parts(StepCache):
        def forward(self, step, x_SD, run):
            assert run.modulation.params.shape[-1] == x_SD.shape[1]
            y_SD = yield from run((yield from run(x_SD, 0, 1)), 1, 2)
            return (yield from run(y_SD, 2))

    assert torch.equal(runs.forward(Parts(), 0), runs.whole(0))
    assert runs.calls == [(0, 1), (1, 2), (2, 3)]


def test_forwards_that_want_the_same_blocks_share_them_and_the_others_wait():
    """One runs all, one leaves the middle out, one is cut elsewhere, one asks for nothing."""
    calls = []

    def asks(name, *parts):
        x = torch.zeros(1)
        for start, stop in parts:
            x = yield registry_part(x, start, stop)
        return x

    def run(chosen, xs, start, stop):
        calls.append((tuple(chosen), start, stop))
        return [x + (stop - start) for x in xs]

    done = drive([asks("all", (0, 9)), asks("ends", (0, 2), (7, 9)), asks("cut", (0, 4), (4, 9)), asks("none")], run)
    assert calls == [((0, 1, 2), 0, 2), ((0, 2), 2, 4), ((0, 2), 4, 7), ((0, 1, 2), 7, 9)]
    assert done.blocks == [9, 4, 9, 0]
    assert [float(rows) for rows in done.rows] == [9, 4, 9, 0]


def registry_part(x, start, stop):
    from talkies.stepcache.base import Part

    return Part(x, start, stop)


def test_each_request_gets_its_own_policy():
    assert registry.create("off") is not registry.create("off")


def test_an_unknown_policy_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'magic'.*block.*off"):
        registry.create("magic")


def test_parameters_are_named_and_checked():
    for name, policy in registry.STEP_CACHES.items():
        kinds = {p.kind for p in inspect.signature(policy).parameters.values()} - {inspect.Parameter.VAR_KEYWORD}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}, name
        with pytest.raises(ConfigError, match="has no parameter 'speed'"):
            registry.create(name, {"speed": 2})
    with pytest.raises(ConfigError, match="residual_diff_threshold"):
        registry.create("block", {})
    for name, parameters, word in (
        ("block", {"residual_diff_threshold": -1}, "at least 0"),
        ("block", {"residual_diff_threshold": float("nan")}, "at least 0"),
        ("block", {"residual_diff_threshold": 0.1, "Fn_compute_blocks": 0}, "at least 1"),
        ("block", {"residual_diff_threshold": 0.1, "taylorseer_order": 4}, r"0\.\.3"),
        ("teacache", {"threshold": -0.1}, "0 skips nothing"),
        ("teacache", {"threshold": 0.1, "coefficients": []}, "distance itself"),
    ):
        with pytest.raises(ConfigError, match=word):
            registry.create(name, parameters)
