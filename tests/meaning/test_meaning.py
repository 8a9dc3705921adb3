"""The embedded checkpoint makes what it is asked for: a small part of `bench/meaning.py`, with its real thresholds.

One clip more or less right is a few per cent here, so the floors are those of the bench minus one clip.
"""

from __future__ import annotations

import json

import pytest

from bench.meaning import FRAME_COUNTS, THRESHOLDS, Job, Outcome, jobs_of, report, run_jobs, scores_of
from bench.meaning_cases import CASES, KEYFRAME_CASES, QUICK
from talkies.engine.config import embedded_folder
from training import world
from training.components import DIT


def trained_here() -> bool:
    """Whether the embedded DiT is the one that ``training/`` defines; the card of an interim one says so."""
    path = embedded_folder() / "transformer" / "config.json"
    return path.is_file() and json.loads(path.read_text())["hidden_size"] == DIT["hidden_size"]


pytestmark = pytest.mark.skipif(
    not trained_here(), reason="the embedded weights are interim ones from another world: see their model card"
)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    jobs = [Job("22 frames", case, 22) for case in QUICK] + [Job("56 frames", case, 56) for case in QUICK]
    jobs += [Job("124 frames", CASES[0], 124), Job("first key", KEYFRAME_CASES[0], 56, ends=("first",))]
    return run_jobs(jobs)


def text(outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if not o.job.ends]


@pytest.mark.parametrize("name", THRESHOLDS)
def test_clips_show_and_sound_like_their_prompts(outcomes, name):
    rate = scores_of(text(outcomes)).rates[name]
    assert rate.hits >= THRESHOLDS[name] * rate.total - 1, rate


def test_the_long_clip_keeps_its_picture_its_sound_and_its_sync(outcomes):
    verdict = next(o for o in outcomes if o.job.num_frames == 124).verdict
    assert (verdict.color, verdict.motion, verdict.sound) == ("red", "bounce", "bell")
    assert len(verdict.judged_event_s) == 5
    assert max(map(abs, verdict.offset_ms)) < 1000 / world.FPS


def test_a_first_frame_decides_how_the_object_looks(outcomes):
    outcome = next(o for o in outcomes if o.job.ends)
    expected = outcome.job.case.expected
    for name in ("color", "background", "motion", "sound"):
        assert getattr(outcome.verdict, name) == expected[name]
    assert outcome.psnr_db["first"] > outcome.psnr_db["first at best"] - 6


def test_a_report_of_a_subset_has_the_shape_of_every_bench_result(outcomes):
    result = report(outcomes, "cpu", quick=True)
    assert {"bench", "device", "torch", "commit", "date", "shape", "metrics", "peer", "checks"} == set(result)
    assert 0 <= result["metrics"]["color_share"] <= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_suite_passes_its_checks():
    result = report(run_jobs(jobs_of(quick=False)), "cpu", quick=False)
    assert result["shape"]["frames"] == list(FRAME_COUNTS)
    assert all(result["checks"].values()), result
