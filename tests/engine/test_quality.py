"""Tiers of quality through the whole engine: what is skipped, what is told of it, and what an early end leaves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from talkies.benchmarks.differences import BEST_DB, differences, logmel_db, si_sdr_db, ssim
from talkies.engine.pipeline import path
from talkies.engine.pipeline.step import denoise_step
from talkies.errors import Cancelled
from talkies.quality import CachePolicy, Tiers
from talkies.request import Target, VideoRequest

REQUEST = VideoRequest(
    prompt="a red ball bounces slowly on a dark background with a bell sound",
    num_sigmas=9,
    target=Target(num_frames=22),
    seed=3,
)
FORECAST = {"runs": [0, 1, 3, 5, 7], "video_order": 1, "audio_order": 1}
BLOCK = {"residual_diff_threshold": 0.5, "max_warmup_steps": 2}
POLICIES = {
    "high": CachePolicy(name="forecast", parameters=FORECAST, skipped=0.375, num_forwards=8),
    "medium": CachePolicy(name="block", parameters=BLOCK, skipped=0.4),
    "low": CachePolicy(name="teacache", parameters={"threshold": 0.0}),
}


@pytest.fixture
def engine(embedded_engine, monkeypatch):
    """With tiers of its own, one of which never hits."""
    tiers = Tiers(version=7, checkpoint="x", policies={tier: {"t2va": (one,)} for tier, one in POLICIES.items()})
    monkeypatch.setattr(embedded_engine.components, "limits", replace(embedded_engine.limits, tiers=tiers))
    return embedded_engine


def test_a_tier_skips_what_its_policy_says_and_everybody_is_told(engine):
    told = []
    lossless, clip = engine.generate(REQUEST), None
    clip = engine.generate(REQUEST.replace(quality="high"), on_progress=told.append)
    facts = clip.facts
    assert facts.skipped_fraction == 0.375
    assert facts.step_cache["profile"] == "high-7"
    assert (facts.step_cache["policy"], facts.step_cache["hits"]) == ("forecast", 3)
    assert 0 < facts.step_cache["saved_s"] < 2 * lossless.stages_s["denoise"]
    assert facts.result()["step_cache"] == json.loads(json.dumps(facts.to_dict()))["step_cache"]
    assert facts.warnings == ()
    steps = [p for p in told if p.stage == "denoise"]
    assert [p.step for p in steps] == list(range(1, 9))  # skipped ones are steps, too
    assert steps[6].eta_s == pytest.approx(steps[5].eta_s)  # one forward is left, before and after a skipped one
    assert clip.metadata["request"]["quality"] == "high"
    effective = clip.metadata["effective"]
    assert effective["step_cache"] == {"profile": "high-7", "policy": "forecast", "hits": 3}
    assert effective["skipped_fraction"] == 0.375
    assert not {"step_cache", "skipped_fraction"} & lossless.metadata["effective"].keys()
    found = differences(clip, lossless)
    assert 25 < found.psnr_db < BEST_DB
    assert found.ssim > 0.9


def test_outputs_are_added_up_and_a_cache_that_never_hits_is_warned_of(engine):
    clips = engine.generate_all(REQUEST.replace(quality="low", num_outputs=2))
    lossless = engine.generate(REQUEST)
    assert np.array_equal(clips[0].frames, lossless.frames)  # its threshold is 0
    for clip in clips:
        assert clip.facts.skipped_fraction == clip.facts.step_cache["hits"] == 0
        assert [w for w in clip.facts.warnings if "left out nothing of 8 forwards" in w]


def test_a_request_that_is_ended_in_the_middle_leaves_nothing_to_the_next(engine):
    request = REQUEST.replace(quality="medium")
    want = engine.generate(request)
    stops = []

    def should_stop():
        stops.append(1)
        return len(stops) > 6

    with pytest.raises(Cancelled):
        engine.generate(request, should_stop=should_stop)
    again = engine.generate(request)
    assert np.array_equal(again.frames, want.frames)
    assert np.array_equal(again.audio, want.audio)
    assert 0 < again.facts.skipped_fraction < 0.8


@pytest.mark.parametrize("quality", ["high", "medium"])
def test_a_saved_run_goes_on_with_its_own_policy_and_with_no_other(engine, quality):
    c = engine.components

    def fresh(quality):
        return path.pack(c, path.encode(c, path.prepare(c, REQUEST.replace(quality=quality))))

    whole, broken = fresh(quality), fresh(quality)
    while not whole.done:
        denoise_step(c, whole)
    for _ in range(4):
        denoise_step(c, broken)
    resumed = fresh(quality)
    resumed.restore(broken.tensors())
    while not resumed.done:
        denoise_step(c, resumed)
    assert torch.equal(resumed.video_rows, whole.video_rows)
    assert resumed.skipped_fraction == pytest.approx(whole.skipped_fraction)
    other = fresh("low")
    before = other.video_rows
    with pytest.raises(ValueError, match="another step cache"):
        other.restore(broken.tensors())
    assert (other.step, other.kept, other.to_relearn) == (0, {}, False)
    assert other.video_rows is before
    plain = fresh("lossless")
    denoise_step(c, plain)
    with pytest.raises(KeyError):  # of a lossless run, or one that an older version saved
        other.restore(plain.tensors())
    assert other.step == 0


def test_what_was_not_calibrated_is_made_with_a_warning(engine):
    clip = engine.generate(REQUEST.replace(quality="high", num_sigmas=6, target=Target(num_frames=22)))
    assert clip.facts.step_cache["profile"] == "high-generic"
    assert any("not calibrated for t2va with 5 forwards" in warning for warning in clip.facts.warnings)


def test_distances_know_what_is_equal_louder_and_noisy(engine):
    clip = engine.generate(REQUEST)
    same = differences(clip, clip)
    assert (same.psnr_db, same.si_sdr_db, same.logmel_db, same.loudness_db) == (BEST_DB, BEST_DB, 0.0, 0.0)
    assert same.ssim == pytest.approx(1.0)
    generator = np.random.default_rng(0)
    wave = generator.standard_normal((2, 32_000)).astype(np.float32) * 0.1
    noise = generator.standard_normal(wave.shape).astype(np.float32) * 0.01
    assert si_sdr_db(2 * wave, wave) > 100  # whatever the scale
    assert si_sdr_db(wave + noise, wave) == pytest.approx(20, abs=0.2)
    assert logmel_db(2 * wave, wave, 32_000) == pytest.approx(20 * np.log10(2), abs=0.05)
    frames = generator.integers(0, 255, (2, 32, 40, 3)).astype(np.uint8)
    assert ssim(frames, frames[::-1].copy()) < 0.2
    silent = replace(clip, audio=np.zeros_like(clip.audio))
    assert differences(silent, clip).si_sdr_db is None
