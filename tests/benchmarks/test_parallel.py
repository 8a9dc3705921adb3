"""The benchmark of one rank's work runs where there is no GPU, and counts what a mesh sends."""

from __future__ import annotations

import json

from bench import parallel
from talkies.benchmarks import forward as fw


def test_the_smoke_run_counts_what_crosses(tmp_path):
    assert parallel.main(["--smoke", "--repeats", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "parallel-cpu.json").read_text())
    metrics, c = found["metrics"], fw.TINY
    rows = found["shape"]["rows"]
    # The first rank has ceil(rows / 2) rows: three tensors of half of the heads, then one of the other rank's rows.
    here = -(-rows // 2)
    inner = 4 * c.inner_dim // 2
    blocks = c.num_layers * (3 * here + rows - here) * inner
    # Its first rows are text and sound, then pictures; projected ones are gathered.
    text, audio = 9, 22
    projected = 4 * (audio * c.audio_in_channels + (here - text - audio) * c.video_row_dim)
    assert abs(metrics["2_ulysses_sent_mb"] * 1e6 - (blocks + projected)) < 10
    sums = 2 * rows * c.hidden_size * 4 * 2 * c.num_layers // 2
    assert abs(metrics["2_tensor_sent_mb"] * 1e6 - sums) < 10
    assert metrics["4_ulysses_sent_mb"] < metrics["2_ulysses_sent_mb"]
