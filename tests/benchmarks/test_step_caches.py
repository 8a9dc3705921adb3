"""The benchmark of deciding runs where there is no GPU, and counts what each policy holds."""

from __future__ import annotations

import json

from bench import step_caches
from talkies.benchmarks import forward as fw
from talkies.benchmarks.timing import GIB


def test_the_smoke_run_counts_what_policies_hold(tmp_path):
    assert step_caches.main(["--smoke", "--repeats", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "step_caches-cpu.json").read_text())
    metrics, rows = found["metrics"], found["shape"]["rows"]
    stream = rows * fw.TINY.hidden_size * 4
    video = 7 * 4 * 6 * fw.TINY.video_row_dim * 4
    audio = 22 * fw.TINY.audio_in_channels * 4
    for name, want in (("teacache", 2 * stream), ("block", 2 * stream), ("block_taylor", 3 * stream)):
        assert abs(metrics[f"{name}_held_gib"] * GIB - want) <= 1e-5 * want, name
    assert abs(metrics["forecast_held_gib"] * GIB - 2 * (video + audio)) < 100
    assert all(metrics[f"{name}_decide_s"] > 0 for name in step_caches.POLICIES)
