"""README promises what was measured: each figure in it is one of a result file, as precise as it stands there.

A figure that a new result file changes fails here, and so does one that no row of ``FIGURES`` or ``STATED`` explains.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STATUS = (ROOT / "docs" / "status.md").read_text(encoding="utf-8")
FORWARD, STREAMING = "dit_forward-nvidia-h200", "streaming-nvidia-h200"
# What stands in README, from which file, and how the file's value is written.
FIGURES = [
    ("10.72 s |", FORWARD, "bf16_s", "{:.2f} s |"),
    ("| 13.48 s eager", FORWARD, "diffusers_eager_s", "| {:.2f} s eager"),
    ("12.57 s compiled", FORWARD, "diffusers_compiled_s", "{:.2f} s compiled"),
    ("differs from bf16 by 0.123", FORWARD, "fp8_rel_err", "differs from bf16 by {:.3f}"),
    ("7.42 s", FORWARD, "fp8_s", "{:.2f} s"),
    ("44.1 GiB", FORWARD, "bf16_peak_gib", "{:.1f} GiB"),
    ("71.7 GiB", FORWARD, "diffusers_peak_gib", "{:.1f} GiB"),
    ("58,758 rows", FORWARD, "rows", "{:,} rows"),
    ("talkies takes 12.39 s", FORWARD, "bf16_cudnn_s", "talkies takes {:.2f} s"),
    ("10.89 s, 5.0 GiB", STREAMING, "streamed_mlp8k_heads4_s", "{:.2f} s, 5.0 GiB"),
    ("10.89 s, 5.0 GiB", STREAMING, "peak_gib_58758_r0_mlp8k_heads4", "10.89 s, {:.1f} GiB"),
    ("| 3.42 s |", "e2e-cpu", "client_s", "| {:.2f} s |"),
    ("| 3.50 s |", "e2e-cpu", "diffusers_client_s", "| {:.2f} s |"),
    ("two CPU cores, 124 frames", "e2e-cpu", "frames", "two CPU cores, {} frames"),
    ("56.8 dB PSNR", "e2e-cpu", "same_noise_psnr_db", "{:.1f} dB PSNR"),
    ("in a run of 60 with crashes", "load-cpu", "jobs", "in a run of {:.0f} with crashes"),
    ("its worker | 0 |", "load-cpu", "lost", "its worker | {:.0f} |"),
]
# Versions, lengths that a command asks for, and sizes, which tests below look up.
STATED = {"3.11", "8.7", "2.0", "27.5", "1.4", "5.3"}
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\d)")


@functools.cache
def values(name):
    result = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    assert all(result["checks"].values()), f"a check of {name} does not hold: its figures are not published"
    return result["shape"] | result["metrics"] | result["peer"]


@pytest.mark.parametrize(("stated", "name", "key", "form"), FIGURES)
def test_a_figure_is_that_of_its_file(stated, name, key, form):
    assert form.format(values(name)[key]) == stated
    assert stated in README


def test_no_figure_is_without_a_file():
    known = {number for stated, *_ in FIGURES for number in NUMBER.findall(stated)} | STATED
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "]", README)
    assert set(NUMBER.findall(text)) <= known


def test_the_page_of_published_requests_counts_as_readme_does():
    counted = re.search(r"(\d+) requests: (\d+) become clips", (ROOT / "docs" / "compatibility.md").read_text())
    assert f"{counted[2]} of {counted[1]} published requests" in README


def test_the_weights_are_as_small_as_is_said():
    folder = ROOT / "src" / "talkies" / "assets" / "h3-tiny"
    assert f"({sum(p.stat().st_size for p in folder.rglob('*.safetensors')) / 1e6:.1f} MB)" in README


def test_environments_are_as_large_as_was_measured():
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert "All packages take 1.4 GB, or 5.3 GB" in README
    assert "and the first clip | 1.4 GB |" in page
    assert "torch 2.13.0: 5.3 GB" in page


def test_what_clips_show_is_what_was_judged():
    found = values("meaning-cpu")
    clips = found["prompts"] * found["seeds"] * len(found["frames"])
    attributes = ["color", "shape", "background", "motion", "tempo", "sound", "size", "place"]
    least = min(found[f"{name}_share"] for name in attributes)
    assert least == found["sound_share"]
    assert f"on {clips} clips" in STATUS
    assert f"In {100 * found['all_share']:.1f} % of them" in STATUS
    assert f"right in {100 * least:.1f} %" in STATUS


def test_readme_is_a_page_and_not_a_book():
    assert len(README.splitlines()) <= 120


def test_readmes_links_lead_somewhere():
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", README)]
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_picture_shows_sound_below_the_frame_of_its_moment():
    """A clip that is white and loud in its second half only."""
    frames = np.zeros((56, 64, 112, 3), np.uint8)
    wave = np.zeros((2, 74_656), np.float32)
    frames[28:], wave[:, 37_328:] = 255, 0.5
    script = runpy.run_path(str(ROOT / "docs" / "img" / "clip.py"))
    picture = np.asarray(script["draw"](SimpleNamespace(frames=frames, audio=wave)).convert("L")).astype(float)
    half, sheet = picture.shape[1] // 2, picture.shape[0] - script["WAVE_HEIGHT"]
    assert picture[:sheet, : half - 8].max() == 0
    assert picture[:sheet, half + 8 :].min() > 200
    quiet, loud = picture[sheet + 20, : half - 2], picture[sheet + 20, half + 2 :]
    assert loud.min() > quiet.max()
