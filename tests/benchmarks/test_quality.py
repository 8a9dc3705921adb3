"""The tiers of the embedded checkpoint: within their bounds when they were measured, and as the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import quality
from bench.report import RESULTS
from talkies.engine.config import embedded_folder
from talkies.files.location import model_hash
from talkies.files.step_caches import read_tiers
from talkies.quality import TIERS

PAGE = Path(__file__).parents[2] / "docs" / "step-caches.md"


@pytest.fixture(scope="module")
def result():
    return json.loads((RESULTS / "quality-cpu.json").read_text())


def test_every_bound_holds_in_the_measured_figures(result):
    checks = quality.checks_of(result["metrics"])
    assert len(checks) > 30
    assert [check for check, good in checks.items() if not good] == []
    worse = {**result["metrics"], "high_49_worst_psnr_db": 34.9, "medium_19_worst_sync_ms": 42.0}
    assert sum(not good for good in quality.checks_of(worse).values()) == 2


def test_the_tiers_of_the_embedded_checkpoint_are_its_own_and_those_that_were_measured(result):
    tiers = read_tiers(embedded_folder())
    assert tiers.checkpoint == model_hash(embedded_folder())
    for tier in TIERS:
        for task in ("t2va", "fl2va", "ref2va"):
            assert {policy.num_forwards for policy in tiers.policies[tier][task]} == {19, 49}
        assert result["shape"][f"{tier} 49"] == f"{tier}-{tiers.version}"


def test_the_page_has_the_measured_table(result):
    found = PAGE.read_text("utf-8").partition("<!-- table of bench.quality -->\n")[2].partition("<!-- end -->")[0]
    assert found == quality.table(result["metrics"])


@pytest.mark.bench
@pytest.mark.timeout(1200)
def test_measured_again_they_hold(tmp_path):
    assert quality.main(["--out", str(tmp_path)]) == 0
