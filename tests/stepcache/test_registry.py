from __future__ import annotations

import pytest
import torch

from talkies.errors import ConfigError
from talkies.h3.timesteps import step_plan
from talkies.model.modulation import unfolded
from talkies.model.runner import BlockRun
from talkies.stepcache import registry
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows


def block_run(dit, calls):
    layout = tiny_layout()
    rows = tiny_rows(layout)
    plan = step_plan(layout, torch.tensor(0.25), torch.tensor(0.5))

    def blocks(x, view, modulation, start=0, stop=None):
        calls.append((start, stop))
        return dit.run_blocks(x, view, modulation, start, stop)

    run = BlockRun(blocks, dit.view(layout), unfolded(dit, plan), dit.config.num_layers)
    return dit.embed(*rows[:2], dit.refine_text(rows[2]), layout), run


def test_off_runs_all_blocks_once_in_each_forward():
    dit, calls = tiny_dit(), []
    x, run = block_run(dit, calls)
    cache = registry.create("off")
    cache.begin(tiny_layout(), 19)
    want = dit.run_blocks(x, run.view, run.modulation)
    for step in range(3):
        assert torch.equal(cache.forward(step, x, run), want)
    assert calls == [(0, None)] * 3


def test_a_policy_may_run_the_blocks_in_parts_and_sees_their_modulation():
    dit, calls = tiny_dit(), []
    x, run = block_run(dit, calls)
    middle = run.num_blocks - 1
    assert torch.equal(run(run(run(x, 0, 1), 1, middle), middle), run(x))
    assert calls == [(0, 1), (1, middle), (middle, None), (0, None)]
    assert run.modulation.params.shape[-1] == dit.config.hidden_size


def test_each_request_gets_its_own_policy():
    assert registry.create("off") is not registry.create("off")


def test_an_unknown_policy_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'magic'.*off"):
        registry.create("magic")
