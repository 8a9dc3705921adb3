"""Every step cache in every way that a request is run: alone, shared, recorded, streamed, on two ranks, resumed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from talkies import Engine
from talkies.attention.base import Trimmed
from talkies.attention.sdpa import sdpa
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.state import course_of, plans_of, state_of
from talkies.engine.pipeline.step import denoise_step, own_step
from talkies.model.modulation import build_table
from talkies.placement.apply import runner_of
from talkies.placement.components import Residency
from talkies.placement.graphs.replay import Graphs
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.peers import Peers
from talkies.request import Target, VideoRequest
from talkies.sampling.anchors import Anchors
from talkies.sampling.schedule import build_dual
from talkies.stepcache import registry
from tests.placement.graphs.tape import TapeRecorder
from tests.placement.rank_processes import embedded_reader, join, run
from tests.placement.ranks.meshes import build, layouts

PROMPT = "a red ball bounces slowly on a dark background with a bell sound"
NUM_SIGMAS = 9
# Each skips some of the eight forwards of these requests, and runs some that are not at their ends.
POLICIES = {
    "teacache": ("teacache", {"threshold": 1.0, "max_continuous_cached_steps": 2}),
    "block": ("block", {"residual_diff_threshold": 0.5, "max_warmup_steps": 2, "max_continuous_cached_steps": 2}),
    "block, ends and forecast": (
        "block",
        {
            "residual_diff_threshold": 1.0,
            "max_warmup_steps": 2,
            "max_continuous_cached_steps": 1,
            "Fn_compute_blocks": 2,
            "Bn_compute_blocks": 1,
            "taylorseer_order": 1,
        },
    ),
    "forecast": ("forecast", {"runs": [0, 1, 3, 6, 7], "audio_order": 0}),
}


def with_policy(state, name, num_blocks):
    """The state, before its first forward, with another policy."""
    policy, parameters = POLICIES[name]
    state.step_cache = registry.create(policy, parameters)
    state.step_cache.begin(course_of(state.layout, state.schedule, num_blocks))
    return state


def fresh(engine, policy=None, prompt=PROMPT, **changes):
    values = {"num_sigmas": NUM_SIGMAS, "target": Target(num_frames=22), **changes}
    c = engine.components
    state = pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, VideoRequest(prompt=prompt, **values))))
    return state if policy is None else with_policy(state, policy, c.dits[state.partition].config.num_layers)


def finish(engine, *states):
    """To their ends, together; the share of the blocks that each of them had run in each step."""
    ran = [[] for _ in states]
    while going := [index for index, state in enumerate(states) if not state.done]:
        before = [states[index].ran for index in going]
        denoise_step(engine.components, *(states[index] for index in going))
        for index, was in zip(going, before, strict=True):
            ran[index].append(round(states[index].ran - was, 6))
    return ran


def same(a, b):
    return torch.equal(a.video_rows, b.video_rows) and torch.equal(a.audio_rows, b.audio_rows)


def near(a, b, tolerance):
    return all(
        float((x - y).norm() / y.norm()) <= tolerance
        for x, y in ((a.video_rows, b.video_rows), (a.audio_rows, b.audio_rows))
    )


@pytest.fixture(scope="module")
def alone(embedded_engine):
    """Of each policy the state at the end and what was run in each step."""
    found = {}
    for name in POLICIES:
        state = fresh(embedded_engine, name)
        found[name] = (state, finish(embedded_engine, state)[0])
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_alone_some_is_skipped_and_the_clip_is_nearly_the_same(embedded_engine, alone, name):
    state, ran = alone[name]
    assert ran[0] == ran[-1] == 1.0
    assert 0 < state.hits == sum(share < 1 for share in ran) < NUM_SIGMAS - 3
    assert state.skipped_fraction == pytest.approx(1 - sum(ran) / len(ran))
    whole = fresh(embedded_engine)
    finish(embedded_engine, whole)
    assert whole.hits == whole.skipped_fraction == 0
    assert near(state, whole, 0.2)
    assert not same(state, whole)


@pytest.mark.parametrize("name", POLICIES)
def test_shared_with_others_each_decides_for_itself(embedded_engine, alone, name):
    """Beside it one that skips nothing, and one of another length, schedule and policy."""
    others = [fresh(embedded_engine, prompt="a blue square"), fresh(embedded_engine, "block", num_sigmas=6, seed=9)]
    state, plain, other = fresh(embedded_engine, name), *others
    rows = []
    runner = embedded_engine.components.runners[state.partition]
    counted = SimpleNamespace(
        blocks=lambda x, *rest: rows.append(x.shape[0]) or runner.blocks(x, *rest),
        refine_text=runner.refine_text,
        sharing=None,
        total=runner.total,
    )
    embedded_engine.components.runners[state.partition] = counted
    try:
        ran, all_of_plain, _ = finish(embedded_engine, state, plain, other)
    finally:
        embedded_engine.components.runners[state.partition] = runner
    assert ran == alone[name][1]
    assert set(all_of_plain) == {1.0}
    assert near(state, alone[name][0], 1e-4)
    assert plain.num_rows in rows, "the batch never shrank to the one that runs"
    assert state.num_rows + plain.num_rows + other.num_rows in rows
    lone = fresh(embedded_engine, prompt="a blue square")
    finish(embedded_engine, lone)
    assert near(plain, lone, 1e-4)


@pytest.mark.parametrize("stop_at", [1, 5])
@pytest.mark.parametrize("name", POLICIES)
def test_resumed_it_ends_in_the_same_bits(embedded_engine, alone, name, stop_at):
    whole, ran = alone[name]
    broken = fresh(embedded_engine, name)
    for _ in range(stop_at):
        denoise_step(embedded_engine.components, broken)
    saved = {key: tensor.clone() for key, tensor in broken.tensors().items()}
    assert sum(t.nbytes for t in saved.values()) < 6 * broken.video_rows.nbytes  # rows, not hidden states
    resumed = fresh(embedded_engine, name)
    resumed.restore(saved)
    assert resumed.tensors().keys() == saved.keys()  # saved again before it went on, nothing is lost
    assert finish(embedded_engine, resumed)[0] == ran[stop_at:]
    assert same(resumed, whole)
    assert (resumed.ran, resumed.hits) == (pytest.approx(whole.ran), whole.hits)


@pytest.mark.parametrize("name", POLICIES)
def test_cancelled_in_the_middle_it_leaves_nothing_to_the_next(embedded_engine, alone, name):
    ended = fresh(embedded_engine, name)
    for _ in range(4):
        denoise_step(embedded_engine.components, ended)
    after = fresh(embedded_engine, name)
    assert finish(embedded_engine, after)[0] == alone[name][1]
    assert same(after, alone[name][0])


@pytest.mark.parametrize("name", POLICIES)
def test_recorded_forwards_and_parts_of_them_are_replayed(embedded_engine, alone, name):
    """With the stand-in for CUDA graphs, twice: the second request finds all its shapes recorded."""
    c, graphs = embedded_engine.components, Graphs(TapeRecorder())
    partition = alone[name][0].partition
    eager, c.runners[partition] = c.runners[partition], runner_of(c.dits[partition], graphs=graphs)
    try:
        states = [fresh(embedded_engine, name) for _ in range(2)]
        ran = [finish(embedded_engine, state)[0] for state in states]
    finally:
        c.runners[partition] = eager
    assert ran == [alone[name][1]] * 2
    assert all(same(state, alone[name][0]) for state in states)
    assert graphs.replays > sum(share > 0 for share in ran[0])


@pytest.fixture(scope="module")
def streamed():
    return Engine.open(offload="layer", resident_blocks=0)


@pytest.mark.parametrize("name", POLICIES)
def test_streamed_a_skipped_block_is_not_uploaded(streamed, alone, name):
    state = fresh(streamed, name)
    stream = _stream_of(streamed, state.partition)
    moved, ran = [], []
    while not state.done:
        before, was = stream.bytes_moved, state.ran
        denoise_step(streamed.components, state)
        moved.append(stream.bytes_moved - before)
        ran.append(round(state.ran - was, 6))
    assert ran == alone[name][1]
    assert same(state, alone[name][0])
    whole = max(moved)
    for share, crossed in zip(ran, moved, strict=True):
        # What runs, and at most as many as there are slots, which were fetched ahead before it was known.
        assert crossed <= share * whole + 2 * whole / 7 + 1, (ran, moved)
    assert sum(moved) < 0.9 * len(moved) * whole


def _stream_of(engine, partition):
    """The one that the blocks of a DiT go through."""
    from talkies.placement.stream.layerwise import Streamed

    hooks = [hook for block in engine.components.dits[partition].blocks for hook in block._forward_pre_hooks.values()]
    owners = {id(cell.cell_contents): cell.cell_contents for hook in hooks for cell in hook.__closure__}
    return next(owner for owner in owners.values() if isinstance(owner, Streamed))


def _state(dit, reader, name, attend):
    """A request of the embedded checkpoint's DiT, from numbers alone: the same on every rank."""
    layout, schedule = layouts()["fl2va"], build_dual(NUM_SIGMAS, video_shift=12.0, audio_shift=3.0)
    generator = torch.Generator().manual_seed(5)
    c = reader.config
    video = torch.randn(layout.num_video_rows, c.video_row_dim, generator=generator)
    audio = torch.randn(layout.num_audio_rows, c.audio_in_channels, generator=generator)
    text = torch.randn(layout.num_text, c.text_dim, generator=generator)
    kept = layout.num_condition_video_rows
    state = state_of(
        SimpleNamespace(dits={"fl2va": dit}, attend=attend),
        build_table(reader, plans_of(layout, schedule)),
        request=VideoRequest(prompt="x"),
        task="fl2va",
        partition="fl2va",
        adapters=(),
        seed=1,
        geometry=None,
        layout=layout,
        schedule=schedule,
        anchors=Anchors(video[:kept].clone(), audio[:0]),
        refined_text=dit.refine_text(text),
        video_rows=video,
        audio_rows=audio,
    )
    return with_policy(state, name, c.num_layers)


@torch.inference_mode()
def _run_on(mesh_groups, reader, name, *, decides_alone=False):
    attend = Trimmed(sdpa, "sdpa")
    dit, runner = build(reader, mesh_groups, attend)
    engine = SimpleNamespace(
        dits={"fl2va": dit},
        runners={"fl2va": runner},
        residency=Residency(),
        attend=attend,
        leader=None,
        use=lambda partition, adapters: None,
    )
    state, ran = _state(dit, reader, name, attend), []
    while not state.done:
        was = state.ran
        own_step(engine, state)
        ran.append(round(state.ran - was, 6))
    again = _state(dit, reader, name, attend)
    for _ in range(4):
        own_step(engine, again)
    resumed = _state(dit, reader, name, attend)
    resumed.restore(again.tensors())
    while not resumed.done:
        own_step(engine, resumed)
    return ran, state, same(resumed, state)


def _on_two_ranks(rank, world, port, results):
    peers, reader, found = Peers(join(rank, world, port)), embedded_reader(), {}
    for mesh in (Mesh(ulysses=2), Mesh(tensor=2)):
        groups = RankGroups(mesh, peers)
        for name in POLICIES:
            want_ran, want, _ = _run_on(None, reader, name)
            ran, state, resumes = _run_on(groups, reader, name)
            others = [None, None]
            dist.all_gather_object(others, ran)
            found[f"{mesh.described()} {name}"] = {
                "one decision": others == [want_ran, want_ran],
                "skips": 0 < state.hits < 7,
                "near": near(state, want, 1e-4),
                "resumes": resumes,
            }
    results[rank] = found
    dist.destroy_process_group()


@pytest.mark.timeout(120)
def test_two_ranks_decide_as_one():
    for found in run(_on_two_ranks).values():
        assert len(found) == 2 * len(POLICIES)
        assert {key: checks for key, checks in found.items() if not all(checks.values())} == {}
