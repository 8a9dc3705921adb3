"""Tiers of quality: which policy a request gets, and what its owner is told."""

from __future__ import annotations

import json

import pytest

from talkies.errors import CheckpointError, ConfigError
from talkies.few_steps import AdapterFacts, Ladder
from talkies.files.location import model_hash
from talkies.files.step_caches import FILE_NAME, read_tiers, write_tiers
from talkies.quality import GENERIC, OFF, TIERS, CachePolicy, Tiers, chosen
from talkies.request import AdapterChoice, VideoRequest
from talkies.stepcache import registry

RUNS = {"runs": [0, 2, 4], "video_order": 1, "audio_order": 0}
FORECAST = CachePolicy(name="forecast", parameters=RUNS, skipped=0.4, num_forwards=5, video_shift=12.0, audio_shift=3.0)
BLOCK = CachePolicy(name="block", parameters={"residual_diff_threshold": 0.1}, skipped=0.25)
TABLE = Tiers(version=3, checkpoint="abc", policies={"high": {"t2va": (FORECAST, BLOCK)}, "low": {"t2va": (FORECAST,)}})
TURBO = AdapterFacts(name="turbo", sha256="a", strength=0.0, tasks=("t2va",), ladder=Ladder(num_forwards=5))
FILM = AdapterFacts(name="film", sha256="b", strength=0.0, tasks=("t2va",))


def choose(tiers=TABLE, **changes):
    request = VideoRequest(**{"prompt": "a ball", "quality": "high", "num_sigmas": 6, **changes})
    return chosen(request, tiers, (TURBO, FILM), 50)


def test_lossless_runs_everything_and_is_the_default():
    assert chosen(VideoRequest(prompt="x"), TABLE, (), 50) is OFF
    assert OFF.facts() is None
    assert OFF.policy.skipped == OFF.policy.kept_streams == OFF.policy.kept_rows == 0


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, FORECAST),
        ({"video_shift": 12.0, "audio_shift": 3.0}, FORECAST),  # said, but the same
        ({"video_shift": 11.0}, BLOCK),
        ({"audio_shift": 4.0}, BLOCK),
        ({"num_sigmas": 7}, BLOCK),
        ({"num_sigmas": None}, BLOCK),  # the checkpoint's 50
        ({"num_sigmas": None, "sigmas": (1.0, 0.9, 0.7, 0.4, 0.2, 0.0)}, BLOCK),
        ({"num_sigmas": None, "adapters": (AdapterChoice(name="turbo"),)}, BLOCK),  # five forwards, but its own steps
    ],
)
def test_the_first_policy_that_fits_is_taken(changes, policy):
    found = choose(**changes)
    assert found.policy is policy
    assert found.facts() == {"profile": "high-3", "policy": policy.name}


def test_what_nobody_has_calibrated_is_said():
    assert choose().notes == ()
    for changes, word in (
        ({"quality": "medium"}, "t2va with 5 forwards"),
        ({"quality": "low", "num_sigmas": 9}, "t2va with 8 forwards"),
        ({"tiers": Tiers()}, "this checkpoint"),
    ):
        found = choose(**changes)
        assert found.policy is GENERIC[found.tier]
        assert found.profile == f"{found.tier}-generic"
        assert word in found.notes[0]
        assert "not measured" in found.notes[0]
    assert "without adapters" in choose(adapters=(AdapterChoice(name="film"),)).notes[0]


def test_generic_policies_exist_for_every_tier_and_keep_more_for_less():
    assert tuple(GENERIC) == TIERS
    for policy in GENERIC.values():
        registry.create(policy.name, policy.parameters)
        assert policy.parameters["audio_residual_diff_threshold"] < policy.parameters["residual_diff_threshold"]
    thresholds = [policy.parameters["residual_diff_threshold"] for policy in GENERIC.values()]
    assert thresholds == sorted(thresholds)


@pytest.mark.parametrize(
    ("policy", "streams", "rows"),
    [
        (CachePolicy(name="teacache", parameters={"threshold": 0.1}), 2, 2),
        (CachePolicy(name="block", parameters={"residual_diff_threshold": 0.1}), 2, 1),
        (CachePolicy(name="block", parameters={"residual_diff_threshold": 0.1, "taylorseer_order": 2}), 4, 3),
        (CachePolicy(name="forecast", parameters={"runs": [0, 1]}), 0, 2),
        (CachePolicy(name="forecast", parameters={**RUNS, "video_order": 0}), 0, 1),
        (CachePolicy(name="forecast", parameters={**RUNS, "audio_order": 2}), 0, 3),
    ],
)
def test_what_a_policy_holds_is_known_before(policy, streams, rows):
    assert (policy.kept_streams, policy.kept_rows) == (streams, rows)


def test_a_file_is_read_as_it_was_written_and_is_no_part_of_the_checkpoint(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"1")
    before = model_hash(tmp_path)
    assert read_tiers(tmp_path) == Tiers()
    write_tiers(tmp_path / FILE_NAME, TABLE)
    assert model_hash(tmp_path) == before
    assert read_tiers(tmp_path) == TABLE
    elsewhere = tmp_path / "other.json"
    write_tiers(elsewhere, Tiers(version=4, checkpoint="abc"))
    assert read_tiers(tmp_path, elsewhere).version == 4
    with pytest.raises(CheckpointError, match="no step caches at"):
        read_tiers(tmp_path, tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": 2}, "format is 2"),
        ({"checkpoint": ""}, "checkpoint is missing"),
        ({"version": "1"}, "version"),
        ({"tiers": {"best": {}}}, "high, medium, low"),
        ({"tiers": {"high": {"t2v": []}}}, "t2va, fl2va, ref2va"),
        ({"tiers": {"high": {"t2va": [{"parameters": {}}]}}}, "a policy is missing"),
        ({"tiers": {"high": {"t2va": [{"policy": "off", "speed": 2}]}}}, "unknown keys speed"),
        ({"tiers": {"high": {"t2va": [{"policy": "off", "skipped": "half"}]}}}, "skipped is 'half'"),
        ({"tiers": {"high": {"t2va": [{"policy": "off", "skipped": 1}]}}}, "under 1"),
        ({"tiers": {"high": {"t2va": {"policy": "off"}}}}, "a list"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_name(tmp_path, changes, word):
    path = tmp_path / FILE_NAME
    path.write_text(json.dumps({"format": 1, "version": 1, "checkpoint": "a", "tiers": {}, **changes}))
    with pytest.raises(CheckpointError, match=word) as caught:
        read_tiers(tmp_path)
    assert str(path) in str(caught.value)


def test_caches_of_another_checkpoint_or_of_unknown_parameters_end_the_start():
    from talkies.engine.load.build import check_tiers

    check_tiers(Tiers(), "def")
    check_tiers(TABLE, "abc")
    with pytest.raises(ConfigError, match=r"another checkpoint .abc, and this is def"):
        check_tiers(TABLE, "def")
    strange = CachePolicy(name="block", parameters={"rdt": 0.1})
    with pytest.raises(ConfigError, match="no parameter 'rdt'"):
        check_tiers(Tiers(version=1, checkpoint="abc", policies={"low": {"t2va": (strange,)}}), "abc")
