from __future__ import annotations

import pytest
import torch

from talkies.h3.config import DiTConfig
from talkies.h3.timesteps import step_plan
from talkies.model.modulation import build_table
from talkies.placement.modulation_feed import WHOLE_BYTES, ModulationFeed, pinned
from talkies.sampling.schedule import build_dual
from tests.model.tiny import tiny_dit, tiny_layout


def _table(dit=None):
    schedule, layout = build_dual(6), tiny_layout()
    plans = [step_plan(layout, *t) for t in zip(schedule.t_video, schedule.t_audio, strict=True)]
    return build_table(dit or tiny_dit(), plans)


def _same(a, b):
    assert torch.equal(a.params.cpu(), b.params.cpu())
    assert torch.equal(a.output.cpu(), b.output.cpu())
    assert (a.runs, a.output_runs) == (b.runs, b.output_runs)


@pytest.mark.parametrize("whole_bytes", [0, WHOLE_BYTES])
def test_on_a_cpu_it_is_the_table(whole_bytes):
    table = _table()
    feed = ModulationFeed(table, torch.device("cpu"), whole_bytes=whole_bytes)
    for index in (0, 1, 4, 2):
        _same(feed.step(index), table.step(index))


@pytest.mark.parametrize("spare", [0, -1])
def test_a_table_crosses_whole_where_all_its_steps_are_small(spare):
    table = _table()
    feed = ModulationFeed(table, torch.device("cpu"), whole_bytes=table.all_steps_bytes + spare)
    first, second = feed.step(0).params, feed.step(1).params
    shared = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert shared == (spare == 0)


def test_a_released_schedule_is_never_there_whole():
    """Two of its steps are more than a small table may be."""
    c = DiTConfig()
    assert 2 * 3 * c.num_layers * 6 * c.hidden_size * 2 > WHOLE_BYTES


def test_entries_are_what_a_step_gathers():
    table = _table()
    for index, plan in enumerate(table.steps):
        params, output = table.entries(plan)
        assert torch.equal(torch.stack(params), table.step(index).params)
        assert torch.equal(torch.stack(output), table.step(index).output)
        assert all(entry.is_contiguous() for entry in params)


def test_equal_runs_of_a_schedule_are_one_object():
    table = _table()
    assert len({id(step.rows) for step in table.steps[1:]}) == 1
    rebound = table.rebind(table.steps)
    assert rebound.steps[1].rows is table.steps[1].rows


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("whole_bytes", [0, WHOLE_BYTES])
def test_on_a_gpu_steps_arrive_in_any_order(whole_bytes):
    device = torch.device("cuda")
    table = pinned(_table())
    feed = ModulationFeed(table, device, whole_bytes=whole_bytes)
    for index in (0, 1, 2, 4, 3, 4):
        step = feed.step(index)
        assert step.params.device.type == "cuda"
        _same(step, table.step(index))
    on_gpu = build_table(tiny_dit().to(device), table.steps, device)
    torch.testing.assert_close(on_gpu.params.cpu(), table.params, rtol=1e-5, atol=1e-5)


def test_what_steps_need_of_their_rows_is_on_the_device_before_the_first_one():
    """A copy from the host in a step would stop it; a chunk or a head's rows are then views."""
    table = _table()
    ModulationFeed(table, torch.device("cpu"), stream=object())
    for plan in table.steps:
        for runs in (plan.rows, plan.output_rows):
            whole = runs._index[torch.device("cpu")]
            part = runs.cut(3, 9).index(torch.device("cpu"))
            assert part.data_ptr() == whole[3:].data_ptr()
            assert torch.equal(part, whole[3:9])
