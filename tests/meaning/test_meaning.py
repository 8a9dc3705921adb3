"""The embedded checkpoint makes what it is asked for: a small part of `bench/meaning`, with its real thresholds.

One clip more or less right is a few per cent here, so the floors are those of the bench minus one clip (of the offsets:
minus the events of one).
"""

from __future__ import annotations

import pytest

from bench.meaning.__main__ import FRAME_COUNTS, jobs_of
from bench.meaning.cases import CASES, KEYFRAME_CASES, QUICK
from bench.meaning.clips import Job, Outcome, run_jobs
from bench.meaning.references import REFERENCE_CASES
from bench.meaning.report import FOLLOWED, THRESHOLDS, followed_of, report, scores_of
from training import world

pytestmark = pytest.mark.timeout(1200)  # the first test makes all clips: a minute on two idle cores
ENDS = (("first",), ("last",), ("first", "last"))


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    jobs = [Job("22 frames", case, 22) for case in QUICK] + [Job("56 frames", case, 56) for case in QUICK]
    jobs += [Job("124 frames", CASES[0], 124)]
    jobs += [Job("keys", KEYFRAME_CASES[i], 56, ends=ends) for i, ends in enumerate(ENDS)]
    jobs += [
        Job("references", asked.whole, 56, asked=asked)
        for asked in REFERENCE_CASES
        if asked.references[0].kind == "video" or len(asked.references) == 2
    ]
    return run_jobs(jobs)


def text(outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if not o.job.ends and not o.job.asked]


@pytest.mark.parametrize("name", THRESHOLDS)
def test_clips_show_and_sound_like_their_prompts(outcomes, name):
    rate = scores_of(text(outcomes)).rates[name]
    one_clip = max(len(o.verdict.judged_event_s) for o in text(outcomes)) if name == "offset" else 1
    assert rate.hits >= THRESHOLDS[name] * rate.total - one_clip, rate


def test_the_long_clip_keeps_its_picture_its_sound_and_its_sync(outcomes):
    verdict = next(o for o in outcomes if o.job.num_frames == 124).verdict
    assert (verdict.color, verdict.motion, verdict.sound) == ("red", "bounce", "bell")
    assert len(verdict.judged_event_s) == 5
    assert max(map(abs, verdict.offset_ms)) < 1000 / world.FPS


@pytest.mark.parametrize("ends", ENDS, ids="+".join)
def test_keyframes_decide_how_the_object_looks(outcomes, ends):
    outcome = next(o for o in outcomes if o.job.ends == ends)
    expected = outcome.job.case.expected
    for name in ("color", "background", "motion", "sound"):
        assert getattr(outcome.verdict, name) == expected[name]
    for end in ends:
        assert outcome.psnr_db[end] > 28
        assert outcome.psnr_db[end] > outcome.psnr_db[f"{end} at best"] - 3


@pytest.mark.parametrize("name", FOLLOWED)
def test_references_are_followed(outcomes, name):
    rate = followed_of(outcomes).rates[name]
    assert rate.total >= 4
    assert rate.hits >= FOLLOWED[name] * rate.total, rate


def test_a_report_of_a_subset_has_the_shape_of_every_bench_result(outcomes):
    result = report(outcomes, "cpu", quick=True)
    assert {"bench", "device", "torch", "commit", "date", "shape", "metrics", "peer", "checks"} == set(result)
    assert 0 <= result["metrics"]["color_share"] <= 1


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_the_whole_suite_passes_its_checks():
    result = report(run_jobs(jobs_of(quick=False)), "cpu", quick=False)
    assert result["shape"]["frames"] == list(FRAME_COUNTS)
    assert all(result["checks"].values()), result
