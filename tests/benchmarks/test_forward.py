"""The benchmarks run whole at tiny sizes on a CPU; what they report is there and their checks hold."""

from __future__ import annotations

import json

import pytest
import torch

from bench.dit_forward import __main__ as dit_forward
from talkies.benchmarks import forward as fw
from talkies.benchmarks import report, trace
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import Clock
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from tests.attention.fake_flash3 import FakeFlash3

CPU = torch.device("cpu")


def _results(folder):
    return json.loads((folder / "dit_forward-cpu.json").read_text())


def test_the_comparison_runs_every_part_that_needs_no_gpu(tmp_path):
    parts = "kernels,checks,floor,bf16,fp8,diffusers,small,steps,saturation"
    assert dit_forward.main(["--device", "cpu", "--out", str(tmp_path), "--parts", parts]) == 0
    found = _results(tmp_path)
    assert {"bf16_s", "fp8_s", "floor_bf16_s", "floor_fp8_s", "bf16_peak_gib", "fp8_peak_gib", "fp8_rel_err"} <= set(
        found["metrics"]
    )
    for name in ("steps_4_eager_host_ms", "steps_1_eager_ms", "saturation_tiny_measured_rows", "saturation_tiny_ratio"):
        assert found["metrics"][name] > 0
    assert {"diffusers_eager_s", "diffusers_peak_gib"} <= set(found["peer"])
    assert all(found["checks"].values())
    assert found["checks"]["full_size_agrees_with_diffusers_eager"]
    assert not [note for note in found["shape"]["notes"] if "failed" in note]


def test_a_part_that_fails_is_named_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def broken(run):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(dit_forward.PARTS, "bf16", broken)
    dit_forward.main(["--device", "cpu", "--out", str(tmp_path), "--parts", "bf16,fp8"])
    assert "bf16 failed: RuntimeError: no such kernel" in _results(tmp_path)["shape"]["notes"]
    assert "fp8_s" in _results(tmp_path)["metrics"]
    assert "FAILED bf16" in capsys.readouterr().out


def test_every_backend_of_a_hopper_is_gone_through(tmp_path, monkeypatch):
    """The stand-in for fa3 makes the branches of the e4m3 attention run here."""
    from talkies.attention import flash3

    monkeypatch.setattr(flash3, "load", FakeFlash3)
    monkeypatch.setattr(dit_forward, "backends_here", lambda *_: (["sdpa", "fa3", "fa3-fp8"], []))
    parts = "checks,floor,bf16,fp8,small"
    assert dit_forward.main(["--device", "cpu", "--out", str(tmp_path), "--parts", parts]) == 0
    found = _results(tmp_path)
    metrics = found["metrics"]
    assert not [note for note in found["shape"]["notes"] if "failed" in note]
    assert {"attention_fa3+strided_ms", "attention_fa3-fp8+kernel_ms", "bf16_sdpa_rel", "bf16_fa3-fp8_s"} <= set(
        metrics
    )
    assert 0 < metrics["fp8_attention_rel_err"] < 0.1
    assert metrics["fp8_products_rel_err"] <= metrics["fp8_rel_err"] * 1.2
    for label in ("keyframes", "references"):
        assert 0 < metrics[f"fp8_{label}_exact_rows"] < metrics[f"fp8_{label}_rows"]
        assert metrics[f"fp8_{label}_s"] > 0
        assert metrics[f"fp8_{label}_nothing_exact_s"] > 0
    assert metrics["fp8_edge_step_exact_rows"] == metrics["fp8_edge_step_rows"]
    assert found["checks"]["exact_rows_conditions"]
    assert any("floor_fp8 is with attention fa3-fp8+kernel" in note for note in found["shape"]["notes"])


class WrongFlash3(FakeFlash3):
    """Every bf16 attention is a tenth too large."""

    def flash_attn_func(self, q, *args, **kwargs):
        out, rest = super().flash_attn_func(q, *args, **kwargs)
        return (out * 1.1 if q.dtype == torch.bfloat16 else out), rest


def test_what_a_failed_check_watches_is_not_reported(tmp_path, monkeypatch):
    from talkies.attention import flash3

    monkeypatch.setattr(flash3, "load", WrongFlash3)
    monkeypatch.setattr(dit_forward, "backends_here", lambda *_: (["sdpa", "fa3", "fa3-fp8"], []))
    parts = "checks,bf16,fp8,small,diffusers"
    assert dit_forward.main(["--device", "cpu", "--out", str(tmp_path), "--parts", parts]) == 1
    found = _results(tmp_path)
    assert not found["checks"]["parity_1_fa3"]
    assert not [name for name in found["metrics"] if name.startswith(("bf16_", "small_"))]
    assert any("bf16 failed: CheckFailed" in note for note in found["shape"]["notes"])
    # Conditions that are exact are computed by the broken kernel: those are not timed, what is all e4m3 is.
    assert "fp8_s" in found["metrics"]
    assert "fp8_keyframes_s" not in found["metrics"]
    assert not [name for name in found["metrics"] if name.startswith("speedup")]


def test_a_peer_that_disagrees_takes_our_figure_with_it(tmp_path, monkeypatch):
    from bench.dit_forward import peer

    made = peer.diffusers_dit

    def other_weights(source, device):
        model = made(source, device)
        next(model.parameters()).mul_(3)
        return model

    monkeypatch.setattr(peer, "diffusers_dit", other_weights)
    assert dit_forward.main(["--device", "cpu", "--out", str(tmp_path), "--parts", "bf16,diffusers"]) == 1
    found = _results(tmp_path)
    assert not found["checks"]["full_size_agrees_with_diffusers_eager"]
    assert not [name for name in found["metrics"] if name.startswith("bf16_")]
    assert "diffusers_eager_s" not in found["peer"]


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        dit_forward.parse(["--parts", "bf61"])
    assert "unknown parts bf61" in capsys.readouterr().err


def test_the_full_shape_is_the_one_that_is_claimed():
    layout = fw.FULL.layout()
    assert (layout.num_text, layout.num_audio_rows, layout.num_video_rows) == (30, 696, 58_032)
    assert layout.num_rows == 58_758
    assert DiTConfig() == fw.RELEASED


def test_random_weights_depend_on_name_and_seed_alone():
    a, b = (RandomDiT(fw.TINY, CPU, torch.bfloat16) for _ in range(2))
    name = "blocks.1.ff.up.weight"
    assert torch.equal(a.tensor(name), b.tensor(name))
    assert torch.equal(a.block(1)["ff.up.weight"], a.tensor(name))
    assert not torch.equal(a.tensor(name), a.tensor("blocks.0.ff.up.weight"))
    assert not torch.equal(a.tensor(name), RandomDiT(fw.TINY, CPU, torch.bfloat16, seed=1).tensor(name))
    wide = RandomDiT(fw.TINY, CPU, torch.bfloat16, widen=True)
    assert torch.equal(wide.tensor(name), a.tensor(name).float())
    assert a.tensor("proj_in.weight").dtype == torch.float32


def test_categories_of_kernels():
    names = {
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...": "attention",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob": "attention",
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "matmul",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::...": "matmul",
        "gate_residual_norm_kernel": "gate_residual_norm_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<...": "other",
    }
    assert {name: trace.category(name) for name in names} == names


def test_the_clock_counts_down():
    assert 9 < Clock(10.0).left_s <= 10


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_the_users_forward(quantization):
    found = report.forward(
        size="auto",
        layers=1,
        device="cpu",
        attention="auto",
        kernels="auto",
        quantization=quantization,
        mlp_rows=64,
        head_groups=2,
        repeats=1,
    )
    assert (found["rows"], found["blocks"], found["quantization"]) == (199, 1, quantization)
    assert found["forward_s"] > 0
    with pytest.raises(ConfigError, match=r"size='huge'.*tiny"):
        report.kernels(size="huge", device="cpu", kernels="auto", repeats=1)
