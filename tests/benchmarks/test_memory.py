"""The memory benchmark runs every branch that needs no GPU, and says nothing that it did not measure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from bench.memory import __main__ as memory
from bench.memory import e2e, ranks
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.errors import ConfigError
from talkies.h3 import packing
from tests.placement.alloc_meter import Meter


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
    assert memory.main(["--smoke", "--parts", "ranks", "--rank-parts", "tp_fp8", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "streaming-smoke-cpu.json").read_text())
    assert found["checks"]["both ranks ran to their end"]
    assert found["checks"]["tp2_fp8_streamed: bit-equal to resident"]
    assert {"tp2_fp8_peak_gib", "tp2_fp8_speedup"} <= found["metrics"].keys()
    assert 0 < found["metrics"]["tp2_fp8_rel"] < 0.2
    assert "tp2_s" not in found["metrics"]
    assert not found["peer"]


def test_a_rank_that_fails_ends_the_bench_by_name(capfd):
    config = replace(memory.SMOKE_CONFIG, num_attention_heads=7)
    found = ranks.measure(config, memory.SMOKE_SHAPES[2], torch.device("cpu"), "reference", "sdpa", ("tp_bf16",), 60.0)
    assert found["check both ranks ran to their end"] == 0
    assert "tensor_parallel=2 does not divide 7 heads" in capfd.readouterr().err


def run_part(tmp_path, monkeypatch, part, commit, *options):
    monkeypatch.setenv("BENCH_COMMIT", commit)
    status = memory.main(["--smoke", "--parts", part, "--out", str(tmp_path), *options])
    return status, json.loads((tmp_path / "streaming-smoke-cpu.json").read_text())


def test_parts_of_several_calls_are_kept_together_with_the_commit_of_each(tmp_path, monkeypatch):
    run_part(tmp_path, monkeypatch, "rates", "aaa")
    run_part(tmp_path, monkeypatch, "e2e", "bbb")
    _, found = run_part(tmp_path, monkeypatch, "rates", "ccc")
    assert {"h2d_gb_per_s", "e2e_frames"} <= found["metrics"].keys()
    assert found["checks"]["e2e latents are finite"]
    assert found["shape"]["commits"] == {"rates": "aaa, ccc", "e2e": "bbb"}
    assert found["shape"]["attentions"] == {"rates": "sdpa", "e2e": "sdpa"}
    assert (found["shape"]["attention"], found["commit"]) == ("sdpa", "ccc")


def test_a_part_that_ends_at_last_is_no_failure_any_more(tmp_path, monkeypatch):
    def part(run):
        run.metric("h2d_gb_per_s", 1.0)
        raise RuntimeError("the card fell off the bus")

    with monkeypatch.context() as broken:
        broken.setitem(memory.PARTS, "rates", part)
        status, found = run_part(tmp_path, broken, "rates", "aaa")
    assert status == 1
    assert found["checks"]["rates ran to its end"] is False
    # Another part's end is its own: the failure stands in the file, not in its status.
    status, found = run_part(tmp_path, monkeypatch, "e2e", "aaa")
    assert status == 0
    assert found["checks"]["rates ran to its end"] is False
    status, found = run_part(tmp_path, monkeypatch, "rates", "aaa")
    assert status == 0
    assert found["checks"]["rates ran to its end"] is True
    assert found["metrics"]["h2d_gb_per_s"] > 1.0
    assert found["shape"]["commits"]["rates"] == "aaa"


def test_a_file_without_commits_of_parts_says_what_it_knows(tmp_path, monkeypatch):
    _, found = run_part(tmp_path, monkeypatch, "rates", "aaa")
    path = tmp_path / "streaming-smoke-cpu.json"
    shape = {"rows": [7], "blocks": 6, "attention": "fa3"}
    path.write_text(json.dumps(found | {"metrics": {"s_7_r0": 0.5}, "commit": "old", "shape": shape}))
    _, found = run_part(tmp_path, monkeypatch, "rates", "new")
    assert found["metrics"]["s_7_r0"] == 0.5
    assert found["shape"]["commits"] == {"others": "old", "rates": "new"}
    assert found["shape"]["attention"] == "fa3, sdpa"
    assert 7 in found["shape"]["rows"]


@pytest.mark.parametrize("change", [lambda found: found | {"torch": "1.0"}, lambda found: [found]])
def test_what_cannot_be_taken_over_is_kept_aside_and_said(tmp_path, monkeypatch, capsys, change):
    _, found = run_part(tmp_path, monkeypatch, "rates", "aaa")
    path = tmp_path / "streaming-smoke-cpu.json"
    path.write_text(json.dumps(change(found | {"metrics": {"s_7_r0": 0.5}})))
    _, found = run_part(tmp_path, monkeypatch, "rates", "bbb")
    assert "s_7_r0" not in found["metrics"]
    assert found["shape"]["commits"] == {"rates": "bbb"}
    (aside,) = tmp_path.glob("*.old")
    assert "s_7_r0" in aside.read_text()
    assert str(aside) in capsys.readouterr().out


def test_a_step_of_the_whole_clip_leaves_nothing_under_the_next(monkeypatch):
    """As many bytes at the highest point of three forwards as of one: what a step kept would be in no plan."""
    # What comes after the forwards is larger at this size.
    monkeypatch.setattr(packing, "unpatchify_video", lambda rows, *sizes: rows)
    monkeypatch.setattr(e2e, "_sizes_of", lambda inputs: (1, 1, 1))
    source = RandomDiT(fw.TINY, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        inputs = fw.make_inputs(source, [fw.SMOKE], torch.device("cpu"), torch.float32)
        dit = fw.make_dit(source, torch.device("cpu"), torch.float32, attend="sdpa", kernels="reference")
        step = e2e.Step(dit, inputs)
        peaks = []
        with Meter() as meter:
            for forwards in (1, 1, 3):  # the first one meets the weights, which then count as well
                monkeypatch.setattr(e2e, "NUM_FORWARDS", forwards)
                meter.peak = meter.live
                e2e._denoise(step)
                peaks.append(meter.peak)
    stream = inputs.layout.num_rows * fw.TINY.hidden_size * 4
    assert peaks[1] > stream
    assert peaks[2] - peaks[1] < 0.1 * stream


def test_an_unknown_part_is_refused(tmp_path):
    assert memory.main(["--smoke", "--parts", "sharing", "--out", str(tmp_path)]) == 2
    with pytest.raises(ConfigError, match=r"unknown rank part 'tp_int4'.*tp_fp8, tp_bf16"):
        ranks.measure(memory.SMOKE_CONFIG, memory.SMOKE_SHAPES[0], None, "reference", "sdpa", ("tp_int4",), 1.0)
