"""Where the figures of `python -m bench.meaning` are written, without making a clip."""

from __future__ import annotations

import json

import pytest

from bench.meaning import __main__ as meaning


def test_the_result_file_is_named_after_the_device(monkeypatch, tmp_path):
    result = {"checks": {"color>=0.92": True}}
    monkeypatch.setattr(meaning, "run_jobs", lambda *a, **k: [])
    monkeypatch.setattr(meaning, "report", lambda *a, **k: result)
    monkeypatch.setattr(meaning, "table", lambda outcomes: "")
    monkeypatch.setattr(meaning, "failures", lambda outcomes: "")
    monkeypatch.setattr(meaning, "RESULTS", tmp_path)

    assert meaning.main([]) == 0

    assert [file.name for file in tmp_path.iterdir()] == ["meaning-cpu.json"]
    assert json.loads((tmp_path / "meaning-cpu.json").read_text()) == result


@pytest.mark.parametrize("choice", ["--quick", "--plain"])
def test_a_part_of_the_prompts_leaves_the_result_file_alone(monkeypatch, tmp_path, choice):
    monkeypatch.setattr(meaning, "run_jobs", lambda *a, **k: [])
    monkeypatch.setattr(meaning, "report", lambda *a, **k: {"checks": {"color>=0.92": False}})
    monkeypatch.setattr(meaning, "table", lambda outcomes: "")
    monkeypatch.setattr(meaning, "failures", lambda outcomes: "")
    monkeypatch.setattr(meaning, "RESULTS", tmp_path)

    assert meaning.main([choice]) == 1

    assert not list(tmp_path.iterdir())
