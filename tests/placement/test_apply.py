"""What is put around a DiT's blocks leaves the DiT as it was, and several wrappers compose in one order."""

from __future__ import annotations

import torch

from talkies.h3.timesteps import step_plan
from talkies.model.modulation import unfolded
from talkies.placement.apply import runner_of
from talkies.placement.graphs.replay import Graphs
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows
from tests.placement.graphs.tape import TapeRecorder


def test_the_dit_is_left_as_it_was():
    dit = tiny_dit()
    before = dict(vars(dit))
    runner_of(dit, graphs=Graphs(TapeRecorder()))
    assert vars(dit) == before
    assert dit.run_blocks.__func__ is type(dit).run_blocks


def test_without_anything_around_it_the_dit_itself_runs():
    dit = tiny_dit()
    runner = runner_of(dit)
    assert runner.blocks == dit.run_blocks
    assert runner.refine_text == dit.refine_text


def test_a_graph_replays_what_the_dit_would_run():
    dit, layout = tiny_dit(), tiny_layout()
    graphs = Graphs(TapeRecorder())
    runner = runner_of(dit, graphs=graphs)
    rows = tiny_rows(layout)
    x = dit.embed(*rows[:2], runner.refine_text(rows[2]), layout)
    view, modulation = dit.view(layout), unfolded(dit, step_plan(layout, torch.tensor(0.25), torch.tensor(0.5)))
    want = dit.run_blocks(x, view, modulation)
    for _ in range(3):
        assert torch.equal(runner.blocks(x, view, modulation), want)
    assert graphs.replays == 2
