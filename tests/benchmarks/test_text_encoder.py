"""The text encoder's benchmark runs every case that needs no GPU."""

from __future__ import annotations

import json

from bench import text_encoder


def test_the_smoke_run_ends_with_good_checks(tmp_path):
    assert text_encoder.main(["--smoke", "--repeats", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "text_encoder-cpu.json").read_text())
    assert all(found["checks"].values())
    for precision in ("bf16", "fp8"):
        for length in text_encoder.SMOKE_LENGTHS:
            assert found["metrics"][f"{precision}_sdpa_{length}_s"] > 0
            assert found["metrics"][f"{precision}_{length}_floor_s"] > 0
    errors = [v for k, v in found["metrics"].items() if k.startswith("fp8") and k.endswith("_rel_err")]
    assert len(errors) == len(text_encoder.SMOKE_LENGTHS)
    assert min(errors) > 0.01  # it is not the unquantised encoder that was timed
    assert not any("fa3" in name for name in found["metrics"])
