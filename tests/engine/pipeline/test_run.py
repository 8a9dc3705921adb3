"""The order of a request's units, which an engine in process and a worker share."""

import itertools

import numpy as np
import pytest
import torch

from talkies import Engine, Target, VideoRequest
from talkies.engine.pipeline.run import Boundary, RequestRun
from talkies.engine.pipeline.sinks import ClipSink, Mp4Sink
from talkies.errors import NumericsError
from talkies.media.read.probe import probe

REQUEST = VideoRequest(prompt="x", num_sigmas=3, seed=5, target=Target(num_frames=22))


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


def run_of(engine, request, sinks=None):
    sinks = [] if sinks is None else sinks

    def open_sink(output, state, facts):
        sinks.append((output, facts, ClipSink(engine.components, state, facts)))
        return sinks[-1][-1]

    return RequestRun(engine.components, request, open_sink)


def file_run(engine, request, path):
    return RequestRun(
        engine.components, request, lambda output, state, facts: Mp4Sink.of(engine.components, path, state, facts)
    )


def units(run):
    """The name of every unit that is done, in order."""
    while True:
        if run.wants_forward:
            run.forward()
            yield "forward"
        elif (done := run.advance()) is not None:
            yield done
        else:
            return


def until(run, boundary):
    """Goes on until this unit is done."""
    assert boundary in units(run)


def test_units_come_in_this_order(engine):
    sinks = []
    run = run_of(engine, REQUEST.replace(num_outputs=2), sinks)
    per_output = [Boundary("denoise"), "forward", "forward", Boundary("decode")]
    *before, last = [*units(run)]
    names = [unit if isinstance(unit, str) or unit.step == 0 else (unit.stage, unit.num_steps) for unit in before]
    assert names[:2] == [("prepare", 1), ("encode", 1)]
    assert [name for name in names if name != ("decode", 22)] == [("prepare", 1), ("encode", 1), *per_output * 2]
    assert last == Boundary("decode", 22, 22)
    assert [(output, facts.seed) for output, facts, _ in sinks] == [(0, 5), (1, 6)]
    assert [result.seed for result in run.results] == [5, 6]


def test_seconds_belong_to_the_output_that_took_them(engine):
    run = run_of(engine, REQUEST.replace(num_outputs=2))
    assert run.facts is None
    until(run, Boundary("prepare", 1))
    assert (run.facts.frames, run.facts.num_forwards, run.facts.rows, run.facts.stages_s) == (22, 2, None, {})
    for unit in units(run):
        if unit == "forward":
            run.stepped(100.0)  # of a forward that was shared with others
    first, second = run.results
    assert set(first.stages_s) == {"prepare", "encode", "denoise", "decode", "mux"}
    assert set(second.stages_s) == {"denoise", "decode", "mux"}
    assert 200 <= first.stages_s["denoise"] < 300
    assert run.facts.stages_s["denoise"] == first.stages_s["denoise"] + second.stages_s["denoise"]
    assert run.took_s == pytest.approx(sum(run.facts.stages_s.values()))
    assert (run.facts.seed, run.facts.rows, first.rows) == (5, run.state.num_rows, run.state.num_rows)
    assert run.facts.peak_memory_mb > 0


def test_forwards_left_are_those_of_all_outputs(engine):
    run = run_of(engine, REQUEST.replace(num_outputs=3))
    left = [run.forwards_left() for unit in units(run) if unit == "forward"]
    assert left == [5, 4, 3, 2, 1, 0]


def test_a_later_output_is_the_same_without_the_ones_before(engine):
    sinks, later = [], []
    list(units(run_of(engine, REQUEST.replace(num_outputs=2), sinks)))
    run = run_of(engine, REQUEST.replace(num_outputs=2), later)
    until(run, Boundary("prepare", 1))
    run.output = 1
    assert sum(unit == "forward" for unit in units(run)) == 2
    ((output, facts, sink),) = later
    assert (output, facts.seed) == (1, 6)
    assert np.array_equal(sink.clip(facts).frames, sinks[1][-1].clip(facts).frames)


@pytest.mark.parametrize("units_of_decode", [1, 2])
def test_what_is_closed_while_it_decodes_leaves_no_file(engine, tmp_path, units_of_decode):
    run = file_run(engine, REQUEST, tmp_path / "x.mp4")
    until(run, Boundary("denoise"))
    assert list(itertools.islice(units(run), 2 + units_of_decode))[-1].stage == "decode"
    run.close()
    assert list(tmp_path.iterdir()) == []
    assert run.state is None
    assert run.results == []
    run.close()


def test_a_request_without_sound_decodes_it_all_the_same(engine, tmp_path):
    silent = REQUEST.replace(audio=False)
    list(units(file_run(engine, silent, tmp_path / "x.mp4")))
    assert probe(str(tmp_path / "x.mp4")).audio is None
    run = file_run(engine, silent, tmp_path / "y.mp4")
    until(run, Boundary("denoise"))
    assert list(itertools.islice(units(run), 2)) == ["forward", "forward"]
    with torch.inference_mode():
        run.state.audio_rows[0] = float("nan")
    with pytest.raises(NumericsError, match="denoise audio"):
        run.advance()
    assert not (tmp_path / "y.mp4").exists()
