"""talkies calibrate: schedules from whole runs, bound to their checkpoint, and what requests make of them."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from talkies import Engine
from talkies.benchmarks.calibrate import calibrate
from talkies.capacity.cost import size_of
from talkies.capacity.demand import demand_of
from talkies.cli import app
from talkies.cli.calibrate import read_requests
from talkies.errors import ConfigError, InvalidRequest
from talkies.files.step_caches import read_tiers
from talkies.request import Target, VideoRequest

REQUEST = VideoRequest(prompt="a ball", target=Target(num_frames=22))


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


def test_a_bound_decides_how_many_forwards_run(engine):
    tiers = calibrate(engine, [REQUEST, REQUEST.replace(seed=7)], [7], bounds={"high": 0.0, "medium": 1e-4, "low": 1e9})
    assert "high" not in tiers.policies  # nothing may be off by anything: nothing is left out
    (low,) = tiers.policies["low"]["t2va"]
    assert low.parameters["runs"] == [0, 5]
    assert (low.skipped, low.num_forwards) == (pytest.approx(4 / 6, abs=1e-6), 6)
    assert (low.video_shift, low.audio_shift) == (12.0, 3.0)
    medium = tiers.policies.get("medium", {}).get("t2va", ())
    assert all(2 < len(policy.parameters["runs"]) < 6 for policy in medium)
    assert tiers.checkpoint == engine.components.checkpoint_hash
    with pytest.raises(InvalidRequest, match="steps of its own"):
        calibrate(engine, [REQUEST.replace(video_shift=5.0)], [7])


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_the_file_of_one_command_is_what_another_asks_for(tiny_folder, tmp_path):
    asked, file, clip = tmp_path / "requests.jsonl", tmp_path / "caches.json", tmp_path / "a.mp4"
    asked.write_text(json.dumps({"prompt": "a ball", "target": {"num_frames": 22}}) + "\n\n")
    done = run("calibrate", "--model", str(tiny_folder), "--requests", str(asked), "--steps", "7", "-o", str(file))
    assert done.exit_code == 0, done.output
    tiers = read_tiers(tiny_folder, file)
    assert tiers.version == json.loads(done.stdout.splitlines()[-1])["version"] == 1
    assert tiers.policies["low"]["t2va"]
    line = ["generate", "a ball", "--frames", "22", "--steps", "7", "--quality", "low", "--json", "-o", str(clip)]
    done = run(*line, "--model", str(tiny_folder), "--step-caches", str(file))
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["step_cache"]["profile"] == "low-1"
    assert facts["skipped_fraction"] == tiers.policies["low"]["t2va"][0].skipped > 0
    done = run(*line, "--step-caches", str(file))
    assert done.exit_code == 2
    assert "calibrated for another checkpoint" in done.output
    assert "--step-caches none" in done.output
    # A checkpoint whose own file is of another one starts without it, and can be calibrated anew.
    other = tmp_path / "model"
    shutil.copytree(tiny_folder, other)
    table = json.loads(file.read_text())
    (other / "step_caches.json").write_text(json.dumps({**table, "checkpoint": "b" * 64, "version": 4}))
    done = run(*line, "--model", str(other))
    assert done.exit_code == 2
    done = run(*line, "--model", str(other), "--step-caches", "none")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["step_cache"]["profile"] == "low-generic"
    done = run("calibrate", "--model", str(other), "--requests", str(asked), "--steps", "7")
    assert done.exit_code == 0, done.output
    assert (read_tiers(other).version, read_tiers(other).checkpoint) == (5, tiers.checkpoint)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "block"], "has no calibration"),
        (["--steps", "3"], "--steps 3 is outside 4..200"),
        (["--requests", "absent.jsonl"], "cannot read absent.jsonl"),
        (["-o", "absent/caches.json"], "absent is no folder"),
    ],
)
def test_a_line_that_cannot_be_done_is_refused_before_weights(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("calibrate", *words)
    assert done.exit_code in (1, 2)
    assert said in done.output


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("", ConfigError, "holds no requests"),
        ("{", ConfigError, "line 1 is not JSON"),
        ('{"prompt": "a"}\n[]', ConfigError, "line 2 is no object"),
        ('{"prompt": "a", "speed": 1}', InvalidRequest, "speed"),
    ],
)
def test_a_file_of_requests_is_read_line_by_line(tmp_path, text, error, word):
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(error, match=word):
        read_requests(path)


def test_what_a_tier_leaves_out_is_known_to_demand_cost_and_memory(embedded_engine):
    limits = embedded_engine.limits
    whole = demand_of(VideoRequest(prompt="x", num_sigmas=50, num_outputs=2), limits)
    high = demand_of(VideoRequest(prompt="x", num_sigmas=50, num_outputs=2, quality="high"), limits)
    policy = limits.tiers.policies["high"]["t2va"]
    runs = next(len(one.parameters["runs"]) for one in policy if one.num_forwards == 49)
    assert size_of(whole).num_forwards == 98
    assert size_of(high).num_forwards == pytest.approx(2 * runs, abs=1e-3)
    from talkies.engine.worker.memory_model import measure

    model = measure(embedded_engine.components)
    assert model.need(high).held > model.need(whole).held
