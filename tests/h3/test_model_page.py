"""The figures of docs/model.md are what the code computes for the released sizes."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from talkies.codecs.video.tiles import plan_axis
from talkies.h3 import dit_keys
from talkies.h3.config import DiTConfig
from talkies.h3.geometry import Limits, audio_latents_of, canvas_of_aspect, geometry_of, latent_frames_of
from talkies.sampling.schedule import build_dual

PAGE = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
LIMITS = Limits()


def row(name):
    """Cells of the table's row that begins with ``name``."""
    found = re.search(rf"^\| {re.escape(name)} \|(.+)\|$", PAGE, re.MULTILINE)
    assert found, name
    return [cell.strip().replace(",", "") for cell in found[1].split("|")]


def test_lengths():
    frames = [int(cell) for cell in row("F")]
    assert [int(cell) for cell in row("T")] == [latent_frames_of(f, LIMITS) for f in frames]
    assert [int(cell) for cell in row("Ta")] == [audio_latents_of(f, LIMITS) for f in frames]
    assert len(frames) > 5


def test_canvases():
    ratios = [tuple(map(int, cell.split(":"))) for cell in row("ratio")]
    sizes = [canvas_of_aspect(w / h, LIMITS) for w, h in ratios]
    assert row("canvas") == [f"{w}x{h}" for w, h in sizes]
    assert [int(cell) for cell in row("R")] == [w * h // 1024 for w, h in sizes]


@pytest.mark.parametrize(("canvas", "frames", "text"), [((1248, 768), 209, 30), ((1344, 768), 124, 500)])
def test_rows_of_a_sequence(canvas, frames, text):
    g = geometry_of(*canvas, frames, LIMITS)
    total = text + g.audio_rows + g.video_rows
    line = " ".join(PAGE.split())
    assert f"{text} + {g.audio_rows:,} + {g.video_rows:,} = {total:,}" in line


def test_parameters():
    config = DiTConfig()
    specs = dit_keys.all_specs(config)
    counts = (
        sum(prod(s.shape) for s in specs),
        sum(prod(s.shape) for s in specs if s.adaln),
        sum(prod(s.shape) for s in dit_keys.block_specs(config, "", adaln=True)),
        sum(prod(s.shape) for s in specs if s.name.startswith("token_refiner.")),
    )
    for count in counts:
        assert f"{count:,}" in PAGE
    assert f"{round(100 * counts[1] / counts[0])} % of the weights" in PAGE
    for layout, words in ((dit_keys.Layout.ORIGINAL, "original DiT has {}"), (dit_keys.Layout.PORT, "port {}")):
        assert words.format(len(dit_keys.expected_keys(config, layout))) in PAGE


def test_sigmas():
    schedule = build_dual(50)
    for name, sigmas in (("video", schedule.video_sigmas), ("audio", schedule.audio_sigmas)):
        first, last = re.search(rf"^\| {name} \| (1, .+?) \| (.+?) \|$", PAGE, re.MULTILINE).groups()
        got = [round(float(s), 5) for s in (*sigmas[:4], *sigmas[-4:])]
        assert [float(s) for s in (first + ", " + last).split(", ")] == pytest.approx(got, abs=1e-9)
    distinct = set(schedule.t_video.tolist()) | set(schedule.t_audio.tolist())
    assert f"{len(distinct)} of the targets" in PAGE


@pytest.mark.parametrize("side", [768, 1344])
def test_tiles(side):
    starts = ", ".join(f"{s:,}" for s in plan_axis(side, step=16).starts)
    assert starts in " ".join(PAGE.split())
