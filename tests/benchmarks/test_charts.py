"""Charts hold the numbers of their file, and nothing that is not in it."""

from __future__ import annotations

import json
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from bench import charts
from bench.svg import nice_ticks

HEAD = {"device": "test-gpu", "torch": "2.11", "commit": "abc1234", "peer": {}, "checks": {}}


def _streaming(date="2026-01-02"):
    metrics = {}
    for rows, seconds in ((58758, 10.8), (6105, 0.4)):
        for resident in (0, 25, 50):
            metrics[f"s_{rows}_r{resident}"] = seconds + (50 - resident) / 100
            metrics[f"peak_gib_{rows}_r{resident}"] = 8.25 + resident
            metrics[f"plan_s_{rows}_r{resident}"] = seconds
            metrics[f"plan_peak_gib_{rows}_r{resident}"] = 8 + resident
    metrics |= {"s_58758_r0_mlp8k": 77.0, "peak_gib_58758_r0_mlp8k": 66.0, "resident_s": 10.8}
    return HEAD | {"bench": "streaming", "date": date, "shape": {"attention": "fa3"}, "metrics": metrics}


def _forward():
    metrics = {"bf16_s": 10.7993, "floor_bf16_s": 10.3459, "bf16_over_floor": 1.04}
    metrics |= {"bf16_block_attention_ms": 144.975, "bf16_block_matmul_ms": 61.6, "bf16_block_swiglu_kernel_ms": 1.23}
    return HEAD | {"bench": "dit_forward", "date": "2026-01-02", "shape": {"rows": 58758}, "metrics": metrics}


def _write(folder, **results):
    for name, result in results.items():
        (folder / f"{name.replace('__', '-')}.json").write_text(json.dumps(result))


def _texts(path):
    root = ElementTree.parse(path).getroot()
    return [e.text for e in root.iter() if e.tag.endswith("}text")], root


def test_the_curve_has_axes_with_units_measured_and_planned(tmp_path):
    _write(tmp_path, streaming__old=_streaming("2025-01-01") | {"device": "old-gpu"}, streaming__new=_streaming())
    assert charts.draw(tmp_path, tmp_path / "img") == [tmp_path / "img" / "streaming.svg"]
    texts, root = _texts(tmp_path / "img" / "streaming.svg")
    assert "test-gpu, torch 2.11, attention fa3, commit abc1234, 2026-01-02" in texts
    assert {"seconds", "peak, GiB", "resident blocks, 58,758 rows", "resident blocks, 6,105 rows"} <= set(texts)
    assert {"bf16 measured", "bf16 planned", "11.3", "10.8", "8.25", "58.2"} <= set(texts)
    assert not any("fp8" in text for text in texts)
    assert "77" not in texts  # chunked: another curve
    assert len([e for e in root.iter() if e.tag.endswith("}circle")]) == 2 * 2 * 3
    inside = [(float(e.get("cx")), float(e.get("cy"))) for e in root.iter() if e.tag.endswith("}circle")]
    assert all(0 < x < float(root.get("width")) and 0 < y < float(root.get("height")) for x, y in inside)


def test_a_forward_is_as_long_as_it_takes(tmp_path):
    _write(tmp_path, dit_forward__x=_forward())
    charts.draw(tmp_path, tmp_path)
    texts, root = _texts(tmp_path / "dit_forward.svg")
    assert {"ours, bf16", "10.80 s", "floor, bf16", "10.35 s", "bf16, ms", "144.97", "swiglu", "207.8 ms"} <= set(texts)
    # No peer and no fp8 in this run: no bars for them.
    assert not any("diffusers" in text or "fp8" in text for text in texts)
    widths = {e[0].text: float(e.get("width")) for e in root.iter() if e.tag.endswith("}rect")}
    assert widths["floor, bf16: 10.35 s"] / widths["ours, bf16: 10.80 s"] == pytest.approx(10.3459 / 10.7993, rel=1e-3)
    assert widths["attention: 144.97 ms"] / widths["matmul: 61.60 ms"] == pytest.approx(144.975 / 61.6, rel=1e-2)


def test_tiers_are_drawn_by_task_and_number_of_forwards(tmp_path):
    metrics = {}
    for tier, skipped in (("high", 0.4), ("low", 0.8)):
        for forwards in (19, 49):
            metrics |= {
                f"{tier}_{forwards}_t2va_skipped": skipped,
                f"{tier}_{forwards}_t2va_psnr_db": 60 - 30 * skipped,
            }
    metrics |= {"high_19_t2va_si_sdr_db": 50.0, "high_19_skipped": 0.4}
    _write(tmp_path, quality__x=HEAD | {"bench": "quality", "date": "2026-01-02", "shape": {}, "metrics": metrics})
    assert charts.draw(tmp_path, tmp_path) == [tmp_path / "quality.svg"]
    texts, root = _texts(tmp_path / "quality.svg")
    assert {"t2va", "19 forwards", "49 forwards", "PSNR, dB", "SI-SDR, dB", "skipped"} <= set(texts)
    assert "fl2va" not in texts
    assert len([e for e in root.iter() if e.tag.endswith("}circle")]) == 2 * 2 + 1


def test_without_results_nothing_is_drawn_and_it_is_said(tmp_path, capsys):
    _write(tmp_path, streaming__x=_streaming() | {"metrics": {"h2d_gb_per_s": 55.0}})
    assert charts.main(["--results", str(tmp_path), "--out", str(tmp_path / "img")]) == 1
    assert "nothing to draw" in capsys.readouterr().err
    assert not (tmp_path / "img").exists()


@pytest.mark.parametrize(("low", "high"), [(0, 10.8), (0, 0.45), (0, 46.5), (0, 1), (0, 0), (3, 1000)])
def test_ticks_are_round_and_hold_the_data(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 8
    steps = {round(b - a, 9) for a, b in pairwise(ticks)}
    assert len(steps) == 1
