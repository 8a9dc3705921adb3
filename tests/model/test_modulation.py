from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from talkies.h3.packing import concat_layouts
from talkies.h3.timesteps import row_timesteps, step_plan
from talkies.model.modulation import build_table, join_modulations, timestep_embedding, unfolded
from talkies.sampling.schedule import build_dual
from tests.model.tiny import CONFIG, tiny_dit, tiny_layout


def _plans(layout, num_sigmas):
    schedule = build_dual(num_sigmas)
    return [step_plan(layout, *t) for t in zip(schedule.t_video, schedule.t_audio, strict=True)]


def _assert_same(a, b):
    assert torch.equal(a.params, b.params)
    assert torch.equal(a.output, b.output)
    assert (a.runs, a.output_runs) == (b.runs, b.output_runs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_sigmas", [2, 5, 20])
def test_the_table_equals_the_unfolded_path_bit_for_bit(dtype, num_sigmas):
    dit, plans = tiny_dit(dtype=dtype), _plans(tiny_layout(), num_sigmas)
    table = build_table(dit, plans)
    for i, plan in enumerate(plans):
        _assert_same(table.step(i), unfolded(dit, plan))
    assert table.step(0).params.dtype == dtype


@pytest.mark.parametrize("layout", [tiny_layout(), tiny_layout(keyframe=False)], ids=["keyframe", "words"])
def test_all_steps_at_once_are_the_steps_one_by_one(layout):
    table = build_table(tiny_dit(), _plans(layout, 6))
    every = table.all_steps()
    for index, step in enumerate(every):
        _assert_same(step, table.step(index))
        assert step.params.is_contiguous()
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for m in every for t in (m.params, m.output)}
    assert len(stores) == 2
    assert sum(stores.values()) == table.all_steps_bytes


def test_only_occurring_pairs_are_in_the_table():
    layout = tiny_layout(keyframe=False)
    table = build_table(tiny_dit(), _plans(layout, 5))
    # (t_v, video) and (t_v, text) four times, (t_a, audio) four times.
    assert len(table.pairs) == 12
    assert table.params.shape == (12, CONFIG.num_layers, 6, CONFIG.hidden_size)


def test_an_entry_does_not_depend_on_the_rest_of_the_schedule_or_batch():
    dit = tiny_dit(dtype=torch.bfloat16)
    layouts = [tiny_layout(), tiny_layout(5, keyframe=False)]
    tables = [build_table(dit, _plans(layout, n)) for layout, n in zip(layouts, (5, 9), strict=True)]
    together = step_plan(concat_layouts(layouts), torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0]))
    assert tables[0].covers([together])
    _assert_same(tables[0].at(together), unfolded(dit, together))
    pair = (0.0, 1)
    rows = [table.params[table.pairs.index(pair)] for table in tables]
    assert torch.equal(*rows)


def test_a_table_serves_another_layout_of_the_same_schedule():
    dit = tiny_dit()
    table = build_table(dit, _plans(tiny_layout(11), 5))
    plans = _plans(tiny_layout(21), 5)
    assert table.covers(plans)
    _assert_same(table.rebind(plans).step(3), unfolded(dit, plans[3]))
    assert not table.covers(_plans(tiny_layout(11), 6))


def test_rows_of_a_step_name_their_pair():
    layout = tiny_layout().padded()
    plan = step_plan(layout, torch.tensor(0.25), torch.tensor(0.5))
    distinct, index = row_timesteps(layout, torch.tensor(0.25), torch.tensor(0.5))
    assert plan.timesteps == tuple(distinct.tolist())
    assert torch.equal(plan.output_rows.index(torch.device("cpu")).long(), index)
    entries = plan.rows.index(torch.device("cpu")).tolist()
    for row, entry in enumerate(entries):
        assert plan.pairs[entry] == (distinct[index[row]].item(), max(0, int(layout.tags[row])))


@pytest.mark.parametrize("freq_dim", [8, 256])
def test_timestep_embedding_is_cosines_then_sines_of_the_unscaled_time(freq_dim):
    got = timestep_embedding(torch.tensor([0.0, 0.3, 1.0]), freq_dim)
    half = freq_dim // 2
    for row, t in enumerate((0.0, 0.3, 1.0)):
        angles = [t * math.exp(-math.log(10_000) * i / half) for i in range(half)]
        want = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
        torch.testing.assert_close(got[row], want, rtol=1e-5, atol=1e-6)


def test_a_time_is_embedded_in_float32_whatever_it_comes_in():
    times = torch.tensor([0.0, 0.37, 1.0], dtype=torch.float64)
    assert torch.equal(timestep_embedding(times, 32), timestep_embedding(times.float(), 32))
    assert timestep_embedding(times, 32).dtype == torch.float32


def test_an_entry_is_the_first_of_four_equal_rows():
    """A product of another number of rows rounds otherwise, and a clip's bytes would be others (docs/model.md)."""
    dit = tiny_dit()
    table = build_table(dit, _plans(tiny_layout(), 3))
    first, second = dit.time_embedder_weights()
    block, head = dit.block_adaln(1), dit.output_adaln()
    for entry, (t, tag) in enumerate(table.pairs):
        embedded = timestep_embedding(torch.full((4,), t), CONFIG.freq_dim)
        activation = F.silu(F.linear(F.silu(F.linear(embedded, *first)), *second))
        rows = slice(tag * 6 * CONFIG.hidden_size, (tag + 1) * 6 * CONFIG.hidden_size)
        want = F.linear(activation, block.weight[rows], block.bias[rows])[0].view(6, -1)
        assert torch.equal(table.params[entry, 1], want)
        timestep = sorted({t for t, _ in table.pairs}).index(t)
        assert torch.equal(table.output[timestep], F.linear(activation, *head)[0].view(2, -1))


def test_requests_that_share_a_forward_keep_their_own_entries():
    dit, layouts = tiny_dit(), (tiny_layout(), tiny_layout(keyframe=False))
    steps = [unfolded(dit, _plans(layout, 4)[i]) for i, layout in enumerate(layouts)]
    joint = join_modulations(steps)
    first = joint.cut(0, layouts[0].num_rows)
    second = joint.cut(layouts[0].num_rows, layouts[0].num_rows + layouts[1].num_rows)
    for share, alone in zip((first, second), steps, strict=True):
        for runs, params, own, own_params in (
            (share.runs, joint.params, alone.runs, alone.params),
            (share.output_runs, joint.output, alone.output_runs, alone.output),
        ):
            assert sum(stop - start for start, stop, _ in runs) == sum(stop - start for start, stop, _ in own)
            for (start, stop, entry), (a, b, theirs) in zip(runs, own, strict=True):
                assert (start, stop) == (a, b)
                assert torch.equal(params[entry], own_params[theirs])


def test_joint_runs_are_made_once_for_the_same_requests():
    """With them goes what kernels made of them on the device."""
    dit, known = tiny_dit(), {}
    plans = _plans(tiny_layout(), 3)
    steps = [unfolded(dit, plans[0]), unfolded(dit, plans[0])]
    once, again = join_modulations(steps, known), join_modulations(steps, known)
    assert once.runs is again.runs
    assert once.output_runs is again.output_runs
    assert len(known) == 2
    assert join_modulations(steps).runs == once.runs
    assert join_modulations(steps).runs is not once.runs
