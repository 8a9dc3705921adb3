"""Small forwards through recordings: eager's bits, within bounds, and eager wherever a recording would lie."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from talkies.attention import registry
from talkies.h3.packing import concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.kernels.runs import RowRuns
from talkies.model.chunking import Chunking
from talkies.model.modulation import build_table
from talkies.placement.apply import runner_of
from talkies.placement.graphs import replay as module
from talkies.placement.graphs.replay import Graphs, block_flop, is_small
from talkies.placement.stream.layerwise import LayerwiseConfig, stream
from talkies.sampling.schedule import build_dual
from tests.model.tiny import CONFIG, tiny_dit, tiny_layout, tiny_rows
from tests.placement.graphs.tape import TapeRecorder

CPU = torch.device("cpu")


class Run:
    """One request of a tiny DiT: its embedded rows, its view, its modulations."""

    def __init__(self, dit, blocks, layout=None, seed=1, num_sigmas=7):
        self.dit, self.blocks, self.layout = dit, blocks, layout if layout is not None else tiny_layout()
        schedule = build_dual(num_sigmas)
        steps = zip(schedule.t_video, schedule.t_audio, strict=True)
        self.table = build_table(dit, [step_plan(self.layout, v, a) for v, a in steps])
        video, audio, text = tiny_rows(self.layout, seed)
        refined = dit.refine_text(text, self.layout.text_documents)
        self.view = dit.view(self.layout)
        self.x = dit.embed(video, audio, refined, self.layout)

    def step(self, index, x=None):
        return self.blocks(self.x if x is None else x, self.view, self.table.step(index))

    def eager(self, index, x=None):
        return self.dit.run_blocks(self.x if x is None else x, self.view, self.table.step(index))


def wrapped(**bounds):
    recorder = bounds.pop("recorder", None) or TapeRecorder()
    dit, graphs = tiny_dit(), Graphs(recorder, **bounds)
    return dit, runner_of(dit, graphs=graphs).blocks, graphs, recorder


def test_every_step_of_a_run_equals_eager_and_the_third_one_replays():
    dit, blocks, graphs, recorder = wrapped()
    run = Run(dit, blocks)
    for index in range(len(run.table.steps)):
        kept = run.x.clone()
        out = run.step(index)
        assert torch.equal(out, run.eager(index))
        assert torch.equal(run.x, kept)  # the input is left as it was
        run.x = 0.9 * run.x + 0.1 * out  # other values at each step
    assert recorder.recorded <= 2  # the first step's timesteps may be equal, which is another plan
    assert recorder.replayed == graphs.replays >= len(run.table.steps) - 3


def test_what_a_caller_keeps_is_its_own():
    dit, blocks, _, recorder = wrapped()
    run = Run(dit, blocks)
    outs = [run.step(2) for _ in range(2)]
    kept = run.step(2, run.x)
    value = kept.clone()
    later = run.step(3, run.x + 1)
    assert recorder.replayed >= 2
    assert torch.equal(kept, value)
    assert not torch.equal(later, value)
    assert kept.data_ptr() not in (run.x.data_ptr(), later.data_ptr(), *(o.data_ptr() for o in outs))


def test_a_changed_modulation_is_seen():
    dit, blocks, _, recorder = wrapped()
    run = Run(dit, blocks)
    for index in (1, 2, 3, 4):
        assert torch.equal(run.step(index), run.eager(index))
    assert recorder.replayed >= 2
    assert not torch.equal(run.step(3), run.step(4))


def test_another_request_of_the_same_shape_uses_the_same_graph_with_its_own_positions():
    dit, blocks, graphs, recorder = wrapped()
    first, second = Run(dit, blocks, seed=1), Run(dit, blocks, seed=2)
    second.view = type(second.view)(second.view.sin_SA.clone(), second.view.cos_SA.clone(), second.view.documents)
    first.step(1), first.step(2)
    assert recorder.recorded == 1
    assert torch.equal(second.step(2), second.eager(2))
    assert torch.equal(first.step(2), first.eager(2))
    assert (recorder.recorded, graphs.num_graphs) == (1, 1)


@pytest.mark.parametrize("pad", [False, True])
def test_several_documents_in_one_forward(pad):
    dit, blocks, _, recorder = wrapped()
    layout = concat_layouts([tiny_layout(), tiny_layout(5, keyframe=False, audio_latents=4)])
    run = Run(dit, blocks, layout.padded() if pad else layout)
    for index in (1, 2, 3):
        assert torch.equal(run.step(index), run.eager(index))
    assert recorder.replayed == 2


def test_other_documents_and_other_runs_are_other_graphs():
    dit, blocks, graphs, recorder = wrapped()
    run = Run(dit, blocks)
    for _ in range(2):
        run.step(2)
    exact = run.view.with_exact([(0, 3)])
    swapped = run.table.step(2)
    entries = tuple(reversed(range(max(swapped.runs.entries) + 1)))
    runs = RowRuns(swapped.runs.bounds, tuple(entries[e] for e in swapped.runs.entries))
    other = type(swapped)(swapped.params, runs, swapped.output, swapped.output_runs)
    for view, modulation in ((exact, run.table.step(2)), (run.view, other)):
        for _ in range(3):
            want = dit.run_blocks(run.x, view, modulation)
            assert torch.equal(blocks(run.x, view, modulation), want)
    assert recorder.recorded == graphs.num_graphs == 3


def test_a_part_of_the_blocks_is_a_graph_of_its_own():
    dit, blocks, graphs, _ = wrapped()
    run = Run(dit, blocks)
    m = run.table.step(2)
    for _ in range(3):
        half = blocks(run.x, run.view, m, 0, 2)
        whole = blocks(half, run.view, m, 2)
        assert torch.equal(whole, run.eager(2))
    assert graphs.num_graphs == 2


def test_chunks_and_another_backend_are_not_taken_for_the_old_ones():
    dit, blocks, _, recorder = wrapped()
    run = Run(dit, blocks)
    for _ in range(3):
        run.step(2)
    dit.use_chunking(Chunking(mlp_rows=64, head_groups=2))
    assert torch.equal(run.step(2), run.eager(2))
    assert recorder.replayed == 2
    dit.attend = registry.create("flex")  # keeps a mask that a later call replaces: not in a graph
    for _ in range(3):
        assert torch.equal(run.step(2), run.eager(2))
    dit.attend = lambda q, k, v, documents: registry.create("sdpa")(q, k, v, documents)  # somebody's wrapper
    for _ in range(3):
        run.step(2)
    assert recorder.replayed == 2


def test_the_latest_used_stay_within_their_number():
    dit, blocks, graphs, recorder = wrapped(max_graphs=2)
    runs = [Run(dit, blocks, tiny_layout(length, keyframe=False)) for length in (3, 4, 5)]
    for run in runs:
        run.step(2), run.step(2)
    assert (recorder.recorded, graphs.num_graphs) == (3, 2)
    runs[2].step(2)
    assert recorder.replayed == 4
    runs[0].step(2)  # the oldest one went: it begins again
    assert recorder.replayed == 4


def test_a_stream_of_odd_sizes_neither_grows_nor_pushes_graphs_out():
    dit, blocks, graphs, _ = wrapped(max_graphs=2)
    steady = Run(dit, blocks)
    steady.step(2), steady.step(2)
    for length in range(1, 30):
        Run(dit, blocks, tiny_layout(length, keyframe=False)).step(2)
        steady.step(2)
    assert graphs.num_graphs == 1
    assert len(graphs._known) <= module.SEEN_PER_GRAPH * 2


def test_what_needs_too_much_memory_stays_eager_and_gives_all_back(caplog):
    dit, blocks, graphs, recorder = wrapped(max_bytes=100_000, recorder=TapeRecorder(num_bytes=200_000))
    run = Run(dit, blocks)
    for _ in range(4):
        assert torch.equal(run.step(2), run.eager(2))
    assert (recorder.recorded, recorder.replayed, graphs.num_graphs, graphs.held_bytes) == (1, 0, 0, 0)
    assert recorder.renewed
    assert "no CUDA graph for a forward of" in caplog.text


def test_held_bytes_count_inputs_and_the_pool_even_after_a_graph_went():
    dit, blocks, graphs, _ = wrapped(max_graphs=1)
    first, second = Run(dit, blocks), Run(dit, blocks, tiny_layout(5, keyframe=False))
    first.step(2), first.step(2)
    one = graphs.held_bytes
    assert one > 1000 + first.x.nbytes
    second.step(2), second.step(2)
    assert graphs.num_graphs == 1
    assert graphs.held_bytes > 2000  # the pool is shared and does not shrink
    graphs.forget()
    assert graphs.held_bytes == 0


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("full")], ids=str)
def test_a_recording_that_fails_is_said_once_and_the_forward_runs(error, caplog):
    dit, blocks, graphs, recorder = wrapped(recorder=TapeRecorder(fails=error))
    run = Run(dit, blocks)
    for _ in range(4):
        assert torch.equal(run.step(2), run.eager(2))
    assert caplog.text.count(f"stays eager: {error}") == 1
    recorder.fails = None
    assert graphs.num_graphs == 0
    other = Run(dit, blocks, tiny_layout(5, keyframe=False))
    other.step(2), other.step(2)
    assert graphs.num_graphs == 1  # what was refused is that shape alone


def test_moved_weights_drop_the_graphs():
    dit, blocks, graphs, recorder = wrapped()
    run = Run(dit, blocks)
    for _ in range(3):
        run.step(2)
    assert graphs.num_graphs == 1
    linear = dit.blocks[1].ff.up
    linear.weight = Parameter(linear.weight.data * 2, requires_grad=False)
    assert torch.equal(run.step(2), run.eager(2))
    assert graphs.num_graphs == 0
    for _ in range(2):
        assert torch.equal(run.step(2), run.eager(2))
    assert graphs.num_graphs == 1
    dit.blocks[0].ff.down.weight.data = dit.blocks[0].ff.down.weight.data * 3  # the same Parameter, other memory
    assert torch.equal(run.step(2), run.eager(2))
    assert graphs.num_graphs == 0
    for _ in range(3):
        run.step(2)
    dit.blocks[2] = tiny_dit(seed=5).blocks[0]
    assert torch.equal(run.step(2), run.eager(2))
    assert recorder.recorded == 3


def test_weights_changed_in_place_are_seen():
    dit, blocks, _, recorder = wrapped()
    run = Run(dit, blocks)
    for _ in range(3):
        run.step(2)
    dit.blocks[1].ff.up.weight.data.mul_(2)
    assert torch.equal(run.step(2), run.eager(2))
    assert recorder.replayed == 3


def test_streamed_blocks_stay_eager():
    dit, blocks, graphs, recorder = wrapped()
    run = Run(dit, blocks)
    want = [run.step(2) for _ in range(3)][-1]
    dit.drop_adaln()
    streamed = stream(list(dit.blocks), CPU, LayerwiseConfig(slots=2))
    assert streamed is not None
    moved = streamed.bytes_moved
    for _ in range(4):
        assert torch.equal(run.step(2), want)
    assert streamed.bytes_moved > moved
    assert (recorder.recorded, graphs.num_graphs) == (1, 0)
    streamed.close()


def test_large_forwards_stay_eager(monkeypatch):
    dit, blocks, _, recorder = wrapped()
    run = Run(dit, blocks)
    monkeypatch.setattr(module, "MAX_BLOCK_FLOP", block_flop(CONFIG, (run.layout.num_rows,)) - 1)
    for _ in range(3):
        run.step(2)
    assert recorder.recorded == 0
    halves = Run(dit, blocks, concat_layouts([tiny_layout(3, keyframe=False)] * 2))
    assert is_small(CONFIG, (1,))
    assert not is_small(CONFIG, tuple(halves.layout.document_lengths) * 2)


def test_the_limit_divides_where_launching_hides():
    released = type(CONFIG)()
    assert is_small(released, (2000,))
    assert not is_small(released, (3000,))  # at 1.1 us of products a row a block works three times its launching
    assert is_small(released, (1000, 1000))
    assert block_flop(released, (1000, 1000)) < block_flop(released, (2000,))  # documents do not meet


def test_under_inference_mode_and_outside_of_it():
    dit, blocks, _, recorder = wrapped()
    with torch.inference_mode():
        run = Run(dit, blocks)
        for _ in range(3):
            assert torch.equal(run.step(2), run.eager(2))
    with torch.no_grad():
        assert torch.equal(run.step(2), run.eager(2))
    assert recorder.replayed == 3


def test_dropping_them_frees_what_they_held():
    import gc
    import weakref

    dit, blocks, graphs, _ = wrapped()
    run = Run(dit, blocks)
    for _ in range(3):
        run.step(2)
    (graph,) = graphs._graphs()
    held = weakref.ref(graph.inputs.x_SD)
    del graph
    graphs.forget()
    gc.collect()
    assert held() is None
