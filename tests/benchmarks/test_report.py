"""Names of devices and commits in results."""

from __future__ import annotations

import subprocess

import pytest
import torch

from bench import report


@pytest.mark.parametrize(
    ("device", "called", "name"),
    [("cpu", "", "cpu"), ("cuda:1", "NVIDIA H200", "nvidia-h200"), ("cuda", "NVIDIA A100-SXM4", "nvidia-a100-sxm4")],
)
def test_a_device_has_one_name(monkeypatch, device, called, name):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: (asked.append(str(d)), called)[1])
    assert report.device_name(device) == report.device_name(torch.device(device)) == name
    assert asked == ([] if device == "cpu" else [device] * 2)


def test_a_stated_commit_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_COMMIT", "abc1234")
    path = report.write_result("x", "cpu", shape={}, metrics={}, peer={}, checks={}, folder=tmp_path)
    assert '"commit": "abc1234"' in path.read_text()
    monkeypatch.setenv("BENCH_COMMIT", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: (_ for _ in ()).throw(OSError))
    assert report.commit() == "unknown"
