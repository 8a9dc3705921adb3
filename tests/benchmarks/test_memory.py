"""The memory benchmark runs every branch that needs no GPU, and says nothing that it did not measure."""

from __future__ import annotations

import json

from bench import memory


def test_the_smoke_run_ends_with_good_checks(tmp_path, capsys):
    assert memory.main(["--smoke", "--parts", "rates,bf16,fp8,e2e", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "streaming-smoke-cpu.json"
    found = json.loads(path.read_text())
    assert all(found["checks"].values())
    assert {"resident_s", "streamed_s", "fp8_resident_s", "fp8_streamed_s", "e2e_frames"} <= found["metrics"].keys()
    # Peaks and promises are a GPU's: on a CPU none is claimed.
    assert not any("budget" in name or "within" in name for name in found["checks"])
    assert "bit-equal" in capsys.readouterr().out


def test_parts_of_several_calls_are_kept_together(tmp_path):
    for part in ("rates", "e2e"):
        memory.main(["--smoke", "--parts", part, "--out", str(tmp_path)])
    found = json.loads((tmp_path / "streaming-smoke-cpu.json").read_text())
    assert {"h2d_gb_per_s", "e2e_frames"} <= found["metrics"].keys()


def test_an_unknown_part_is_refused(tmp_path):
    assert memory.main(["--smoke", "--parts", "sharing", "--out", str(tmp_path)]) == 2
