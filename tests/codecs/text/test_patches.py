from __future__ import annotations

import json

import numpy as np
import pytest

from talkies.codecs.text.patches import PatchConfig, image_rows, video_rows
from talkies.errors import CheckpointError, InvalidRequest
from talkies.h3.vision import pair_timestamps, sample_indices
from tests.codecs.tiny import pictures

RELEASE = PatchConfig()
SMALL = PatchConfig(min_pixels=32 * 32, max_pixels=256 * 256)


def naive_rows(frames: np.ndarray) -> np.ndarray:
    """Patches by explicit loops: pair, block row, block column, row and column inside it."""
    frames = np.concatenate([frames, frames[-1:]]) if len(frames) % 2 else frames
    x = (frames.astype(np.float32) / 255 - 0.5) / 0.5
    rows = []
    for pair in range(0, len(x), 2):
        for top in range(0, x.shape[1], 32):
            for left in range(0, x.shape[2], 32):
                for dy in (0, 16):
                    for dx in (0, 16):
                        patch = x[pair : pair + 2, top + dy : top + dy + 16, left + dx : left + dx + 16]
                        rows.append(patch.transpose(3, 0, 1, 2).ravel())
    return np.stack(rows)


@pytest.mark.parametrize(("frames", "height", "width"), [(2, 32, 64), (5, 64, 96)])
def test_video_rows_are_those_of_explicit_loops(frames, height, width):
    pixels = pictures(0, frames, height, width, 3)
    np.testing.assert_allclose(video_rows(pixels, SMALL), naive_rows(pixels), atol=1e-6)


def test_an_image_fills_both_frames_of_its_pair():
    pixels = pictures(1, 64, 96, 3)
    np.testing.assert_allclose(image_rows(pixels, SMALL), naive_rows(pixels[None].repeat(2, axis=0)), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(768, 1344), (768, 768), (512, 2016)])
def test_released_canvases_are_not_resized(height, width):
    assert RELEASE.image_size(height, width) == (height, width)


@pytest.mark.parametrize(
    ("source", "seen"),
    [((64, 112), (224, 352)), ((5000, 5000), (4096, 4096)), ((770, 1000), (768, 992)), ((48, 80), (224, 352))],
)
def test_images_outside_the_bounds_are_scaled(source, seen):
    height, width = RELEASE.image_size(*source)
    assert height % 32 == width % 32 == 0
    assert (height, width) == seen


def test_a_long_video_is_scaled_down_by_its_volume():
    assert RELEASE.video_size(24, 768, 1344) == (768, 1344)
    # An odd count is compared at the even count nearest to it, half to even: 25 counts as 24.
    assert RELEASE.video_size(25, 768, 1344) == (768, 1344)
    beta = (26 * 768 * 1344 / 25_165_824) ** 0.5
    assert RELEASE.video_size(26, 768, 1344) == (int(768 / beta / 32) * 32, int(1344 / beta / 32) * 32)


def test_every_twelfth_frame_is_seen():
    assert sample_indices(30, 24, RELEASE) == [0, 12, 24]
    assert sample_indices(13, 24, RELEASE) == [0, 12]
    assert sample_indices(31, 25, RELEASE) == [0, 12, 25]
    with pytest.raises(InvalidRequest, match="at least 13"):
        sample_indices(12, 24, RELEASE)


def test_pairs_carry_the_mean_of_their_times():
    assert pair_timestamps(4, RELEASE) == [0.25, 1.25]
    assert pair_timestamps(3, RELEASE) == [0.25, 1.0]


def test_bounds_come_from_the_folder(tmp_path):
    assert PatchConfig.load(None) == PatchConfig.load(tmp_path) == RELEASE
    bounds = {"size": {"shortest_edge": 1024, "longest_edge": 65536}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(bounds))
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"min_pixels": 7, "max_pixels": 9}))
    found = PatchConfig.load(tmp_path)
    assert (found.min_pixels, found.max_pixels, found.min_volume, found.max_volume) == (1024, 65536, 7, 9)
    nested = tmp_path / "nested"
    nested.mkdir()
    (nested / "processor_config.json").write_text(json.dumps({"image_processor": bounds}))
    assert PatchConfig.load(nested).max_pixels == 65536


def test_crossed_bounds_are_refused(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 10, "max_pixels": 9}))
    with pytest.raises(CheckpointError, match="lower pixel bound"):
        PatchConfig.load(tmp_path)


@pytest.mark.parametrize("pixels", [np.zeros((32, 32, 3), np.float32), np.zeros((3, 32, 32), np.uint8)])
def test_pixels_of_another_kind_are_refused(pixels):
    with pytest.raises(ValueError, match="uint8"):
        image_rows(pixels, SMALL)
