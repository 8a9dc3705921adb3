"""The memory benchmark runs every branch that needs no GPU, and says nothing that it did not measure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from bench import memory, memory_ranks
from talkies.errors import ConfigError


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


@pytest.mark.timeout(200)
def test_two_ranks_of_the_smoke_run_agree_with_one(tmp_path):
    assert memory.main(["--smoke", "--parts", "ranks", "--rank-parts", "tp_fp8,dlo_bf16", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "streaming-smoke-cpu.json").read_text())
    assert found["checks"]["both ranks ran to their end"]
    assert found["checks"]["tp2_fp8: streamed bit-equal to resident"]
    assert {"tp2_fp8_peak_gib", "tp2_fp8_speedup", "dlo2_s", "host_copies"} <= found["metrics"].keys()
    assert 0 < found["metrics"]["tp2_fp8_rel"] < 0.2
    assert "tp2_s" not in found["metrics"]
    assert not found["peer"]


def test_a_rank_that_fails_ends_the_bench_by_name(capfd):
    config = replace(memory.SMOKE_CONFIG, num_attention_heads=7)
    found = memory_ranks.measure(
        config, memory.SMOKE_SHAPES[2], torch.device("cpu"), "reference", "sdpa", ("tp_bf16",), 60.0
    )
    assert found["check both ranks ran to their end"] == 0
    assert "tensor_parallel=2 does not divide 7 heads" in capfd.readouterr().err


def test_parts_of_several_calls_are_kept_together(tmp_path):
    for part in ("rates", "e2e"):
        memory.main(["--smoke", "--parts", part, "--out", str(tmp_path)])
    found = json.loads((tmp_path / "streaming-smoke-cpu.json").read_text())
    assert {"h2d_gb_per_s", "e2e_frames"} <= found["metrics"].keys()


def test_an_unknown_part_is_refused(tmp_path):
    assert memory.main(["--smoke", "--parts", "sharing", "--out", str(tmp_path)]) == 2
    with pytest.raises(ConfigError, match=r"unknown rank part 'tp_int4'.*tp_fp8, tp_bf16"):
        memory_ranks.measure(memory.SMOKE_CONFIG, memory.SMOKE_SHAPES[0], None, "reference", "sdpa", ("tp_int4",), 1.0)
