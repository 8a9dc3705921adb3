"""What an engine in process tells while it works, and where it can be stopped."""

import pytest

from talkies import Engine, Target, VideoRequest
from talkies.engine.pipeline.run import RequestRun
from talkies.errors import Cancelled

REQUEST = VideoRequest(prompt="x", num_sigmas=5, target=Target(num_frames=22))


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


@pytest.fixture
def step_seconds(monkeypatch):
    """The seconds that the coming forwards are said to have taken."""
    seconds, real = [], RequestRun.forward

    def forward(run):
        real(run)
        return seconds.pop(0)

    monkeypatch.setattr(RequestRun, "forward", forward)
    return seconds


def etas(engine, request):
    seen = []
    engine.generate_all(request, on_progress=seen.append)
    assert all(p.eta_s is None for p in seen if p.stage != "denoise")
    return [p.eta_s for p in seen if p.stage == "denoise"]


def test_an_eta_follows_the_measured_time_of_a_step(engine, step_seconds):
    step_seconds += [30.0, 30.0, 30.0, 30.0]
    # What is left after the last forward was not measured: nothing is said rather than 0.
    assert etas(engine, REQUEST) == [90.0, 60.0, 30.0, None]


def test_one_slow_step_does_not_stay_in_the_eta(engine, step_seconds):
    step_seconds += [100.0, 2.0, 2.0, 2.0]  # the first one compiled
    assert etas(engine, REQUEST) == [300.0, 51.0 * 2, 2.0, None]


def test_an_eta_counts_the_outputs_to_come(engine, step_seconds):
    step_seconds += [2.0] * 8
    assert etas(engine, REQUEST.replace(num_outputs=2)) == [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0, None]


def test_progress_covers_the_request_and_never_goes_back(engine):
    seen = []
    engine.generate_all(REQUEST.replace(num_outputs=2), on_progress=seen.append)
    stages = [(p.output, p.stage) for p in seen]
    order = [(0, "prepare"), (0, "encode"), (0, "denoise"), (0, "decode"), (1, "denoise"), (1, "decode")]
    assert list(dict.fromkeys(stages)) == order
    fractions = [p.fraction for p in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert [p.step for p in seen if p.stage == "denoise"] == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("stage", ["prepare", "encode", "denoise", "decode"])
def test_a_stop_takes_effect_after_the_unit_that_it_met(engine, tmp_path, stage):
    seen = []
    with pytest.raises(Cancelled):
        engine.render(
            REQUEST,
            [tmp_path / "x.mp4"],
            on_progress=seen.append,
            should_stop=lambda: bool(seen) and seen[-1].stage == stage,
        )
    assert [p.stage for p in seen].count(stage) == 1
    assert seen[-1].stage == stage
    assert list(tmp_path.iterdir()) == []
