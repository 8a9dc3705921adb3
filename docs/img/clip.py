"""Draws docs/img/clip.png, the picture of a clip in README: some of its frames, and its sound below them.

    python docs/img/clip.py [OUTPUT]

The clip is that of ``make demo``, made anew by the embedded model with its default seed. Frames stand above the moment
at which they are shown: both halves of the picture have one axis of time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from talkies import Engine, VideoRequest
from talkies.engine.pipeline.clip import Clip

PROMPT = "a red ball bounces slowly on a dark background with a bell sound"
WIDTH, NUM_FRAMES, WAVE_HEIGHT = 896, 8, 96  # pixels, pictures in a row, pixels
GROUND, INK, GREY = "#0f172a", "#38bdf8", "#94a3b8"


def draw(clip: Clip) -> Image.Image:
    """``NUM_FRAMES`` frames of ``clip.frames`` (uint8 [F, H, W, 3]) in a row, above ``clip.audio`` (float32 [2, N])."""
    frames, wave = np.asarray(clip.frames), np.abs(np.asarray(clip.audio)).max(axis=0)
    column = WIDTH // NUM_FRAMES
    height = round(column * frames.shape[1] / frames.shape[2])
    sheet = Image.new("RGB", (WIDTH, height + WAVE_HEIGHT), GROUND)
    for index in range(NUM_FRAMES):
        frame = frames[round((index + 0.5) * len(frames) / NUM_FRAMES)]
        sheet.paste(Image.fromarray(frame).resize((column, height), Image.Resampling.LANCZOS), (index * column, 0))
    pen = ImageDraw.Draw(sheet)
    middle = height + WAVE_HEIGHT // 2
    loudest = max(float(wave.max()), 1e-6)
    for x, part in enumerate(np.array_split(wave, WIDTH)):
        reach = round(float(part.max()) / loudest * (WAVE_HEIGHT // 2 - 8))
        pen.line((x, middle - reach, x, middle + reach), fill=INK)
    seconds = len(frames) / 24
    pen.text((4, height + WAVE_HEIGHT - 13), f"0 to {seconds:.2f} s: picture above, sound below", fill=GREY)
    return sheet


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png")
    draw(Engine.open().generate(VideoRequest(prompt=PROMPT))).save(output, optimize=True)
    print(output)
