"""Graphs of small forwards inside the engine: whole clips, shared forwards, and where their memory goes."""

from __future__ import annotations

import pytest
import torch

from talkies import Engine
from talkies.engine.config import EngineConfig, resolve
from talkies.engine.load.build import load
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker.batching import Batcher
from talkies.engine.worker.memory_model import MEMO_BYTES, _reserve
from talkies.engine.worker.warmup import warm_up
from talkies.errors import ConfigError
from talkies.model.runner import Runner
from talkies.placement.apply import runner_of
from talkies.placement.graphs.recorder import CudaRecorder
from talkies.placement.graphs.replay import Graphs
from talkies.request import Target, VideoRequest
from tests.placement.graphs.tape import TapeRecorder


def opened(folder=None):
    """An engine with the stand-in for CUDA graphs."""
    engine = Engine.open(folder)
    assert engine.components.graphs is None  # a CPU launches nothing
    recorder = TapeRecorder()
    engine.components.graphs = graphs = Graphs(recorder)
    for partition, dit in engine.components.dits.items():
        engine.components.runners[partition] = runner_of(dit, graphs=graphs)
    return engine, graphs, recorder


def fresh(engine, prompt, **changes):
    values = {"num_sigmas": 6, "target": Target(num_frames=22), **changes}
    c = engine.components
    return pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, VideoRequest(prompt=prompt, **values))))


def test_a_clip_of_the_embedded_checkpoint_is_the_same_clip(embedded_engine):
    request = VideoRequest(prompt="a red ball bounces with a bell sound", num_sigmas=8, target=Target(num_frames=22))
    engine, graphs, _ = opened()
    want, got = embedded_engine.generate(request), engine.generate(request)
    assert (got.frames == want.frames).all()
    assert (got.audio == want.audio).all()
    assert graphs.replays >= 4
    again = engine.generate(request)
    assert (again.frames == want.frames).all()
    assert graphs.replays >= 4 + 6  # the shapes are known: at most one step is not a replay


def test_requests_that_share_a_forward_replay_it(tiny_folder):
    plain, (engine, graphs, recorder) = Engine.open(tiny_folder), opened(tiny_folder)

    def members(e):
        return [fresh(e, "one"), fresh(e, "another, longer prompt", seed=7, video_shift=5.0)]

    want, got = members(plain), members(engine)
    batchers = Batcher(plain.components), Batcher(engine.components)
    for _ in range(5):
        for batcher, states in zip(batchers, (want, got), strict=True):
            batcher.step(states)
    for a, b in zip(want, got, strict=True):
        assert a.done
        assert torch.equal(a.video_rows, b.video_rows)
        assert torch.equal(a.audio_rows, b.audio_rows)
    assert recorder.replayed >= 3
    kept = graphs.num_graphs
    batchers[1].forget()
    later = members(engine)
    batchers[1].step(later)
    assert graphs.num_graphs == kept  # the next pair of the same lengths finds it


def test_joint_runs_are_made_once_for_a_group(tiny_folder):
    """What kernels make of them on a device crosses once, not at each step."""
    engine, _, _ = opened(tiny_folder)
    states = [fresh(engine, "one"), fresh(engine, "another one")]
    batcher, seen = Batcher(engine.components), []
    dit = engine.components.dits[states[0].partition]
    project = dit.project

    def watched(x, layout, modulation):
        seen.append((modulation.runs, modulation.output_runs))
        return project(x, layout, modulation)

    dit.project = watched
    for _ in range(4):
        batcher.step(states)
    assert len({id(runs) for runs, _ in seen[1:]}) == 1
    assert len({id(runs) for _, runs in seen[1:]}) == 1
    batcher.forget()
    assert batcher._group is None


def test_a_failure_gives_their_memory_back(tiny_folder):
    engine, graphs, _ = opened(tiny_folder)
    state = fresh(engine, "one")
    for _ in range(3):
        denoise_step(engine.components, state)
    assert graphs.num_graphs == 1

    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    c = engine.components
    real, c.runners[state.partition] = c.runners[state.partition], Runner(full, c.runners[state.partition].refine_text)
    with pytest.raises(Exception, match="out of memory"):
        engine.generate(VideoRequest(prompt="one", num_sigmas=3, target=Target(num_frames=22)))
    c.runners[state.partition] = real
    assert (graphs.num_graphs, graphs.held_bytes) == (0, 0)


def test_the_warm_up_measures_replays(tiny_folder):
    engine, graphs, recorder = opened(tiny_folder)
    cost = warm_up(engine.components)
    assert cost.row_s > 0
    assert recorder.recorded >= 1
    assert graphs.replays >= 2  # of each length that it measures, one step records and replays, another replays
    assert graphs.num_graphs >= 1


def test_room_for_them_is_kept_from_jobs(tiny_folder):
    engine, graphs, _ = opened(tiny_folder)
    c = engine.components

    class OnCuda:
        device = torch.device("cuda")

    class Seen:
        config, graphs = OnCuda(), None
        video, placement, limits = c.video, c.placement, c.limits

    seen = Seen()
    without = _reserve(seen)
    assert without >= MEMO_BYTES
    seen.graphs = graphs
    assert _reserve(seen) == without + graphs.max_bytes
    state = fresh(engine, "one")
    for _ in range(3):
        denoise_step(c, state)
    assert graphs.held_bytes > 0
    assert _reserve(seen) == without + graphs.max_bytes - graphs.held_bytes  # what is held is no longer free


def test_the_flag_is_resolved_once(monkeypatch):
    assert not resolve(EngineConfig(device="cpu")).cuda_graphs
    with pytest.raises(ConfigError, match=r"cuda_graphs='on'.*auto or off"):
        EngineConfig(cuda_graphs="on")
    monkeypatch.setattr("talkies.engine.config._device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("talkies.attention.registry.Machine.of", lambda device, dtype: None)
    monkeypatch.setattr("talkies.attention.registry.resolve_on", lambda name, machine: name)
    told = {"device": "cuda", "kernels": "reference"}
    assert resolve(EngineConfig(attention="sdpa", **told)).cuda_graphs
    assert not resolve(EngineConfig(attention="sdpa", cuda_graphs="off", **told)).cuda_graphs
    assert not resolve(EngineConfig(attention="flex", **told)).cuda_graphs


def test_the_log_says_what_was_resolved(tiny_folder, caplog):
    caplog.set_level("INFO")
    load(EngineConfig(model=str(tiny_folder), device="cpu"))
    assert "CUDA graphs of small forwards off on cpu" in caplog.text


def test_a_recorder_costs_nothing_until_it_records():
    CudaRecorder(torch.device("cuda")).renew()  # no stream, no pool, no CUDA


def test_the_warm_up_tries_shared_forwards_where_they_are_allowed(tiny_folder):
    engine, _, _ = opened(tiny_folder)
    assert warm_up(engine.components).full_rows is None
    cost = warm_up(engine.components, max_num_seqs=3)
    alone = fresh(engine, "warm up", target=Target(num_frames=engine.limits.default_num_frames)).num_rows
    assert cost.full_rows is not None
    assert cost.max_step_rows == cost.full_rows >= alone // 2
