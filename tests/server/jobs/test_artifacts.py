"""Pictures that are made of a finished clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from talkies.media.write.mp4 import write_mp4
from talkies.server.jobs import artifacts


@pytest.mark.parametrize(("num_frames", "columns"), [(3, 3), (24, artifacts.SPRITE_COLUMNS)])
def test_a_sheet_is_as_wide_as_its_frames(tmp_path: Path, num_frames: int, columns: int) -> None:
    frames = np.zeros((num_frames, 64, 112, 3), np.uint8)
    frames[:] = np.linspace(0, 255, num_frames, dtype=np.uint8)[:, None, None, None]
    write_mp4(tmp_path / "clip.mp4", frames, None)
    artifacts._write_spritesheet(tmp_path / "clip.mp4", tmp_path / "sheet.jpg")
    sheet = Image.open(tmp_path / "sheet.jpg")
    count = min(artifacts.MAX_SPRITES, num_frames)
    width, height = sheet.width // columns, sheet.height // -(-count // columns)
    assert sheet.width % columns == 0
    assert abs(width / height - 112 / 64) < 0.1
    first, last = (np.asarray(sheet)[y, x].mean() for y, x in ((height // 2, width // 2), (height // 2, -width // 2)))
    assert first < 20 < last  # brighter from left to right, and no empty column
