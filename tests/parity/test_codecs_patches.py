"""Patch rows against transformers' processors. The video one needs torchvision."""

from __future__ import annotations

import numpy as np
import pytest

from talkies.codecs.text.patches import PatchConfig, image_rows, video_rows
from tests.codecs.tiny import pictures

BOUNDS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}


@pytest.mark.parametrize(("height", "width"), [(64, 112), (256, 256), (300, 411), (768, 1344), (97, 640)])
def test_image_rows_are_those_of_transformers(height, width):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = pictures(height, height, width, 3)
    theirs = Qwen2VLImageProcessorPil(size=BOUNDS, **HALVES)(images=[pixels], return_tensors="np")
    config = PatchConfig()
    assert config.image_grid(height, width) == tuple(theirs["image_grid_thw"][0])
    np.testing.assert_allclose(image_rows(pixels, config), theirs["pixel_values"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_frames", [2, 3, 24, 25, 26, 31])
@pytest.mark.parametrize(("height", "width"), [(16, 20), (64, 112), (770, 1340), (768, 1344), (1344, 768), (480, 480)])
def test_video_sizes_are_those_of_transformers(num_frames, height, width):
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    theirs = smart_resize(num_frames, height, width, 2, 32, min_pixels=4_096, max_pixels=25_165_824)
    assert PatchConfig().video_size(num_frames, height, width) == theirs


@pytest.mark.parametrize(("frames", "height", "width"), [(4, 64, 96), (3, 128, 64)])
def test_video_rows_are_those_of_transformers(frames, height, width):
    pytest.importorskip("torchvision", reason="transformers' video processor needs torchvision")
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    size = {"shortest_edge": 4_096, "longest_edge": 25_165_824}
    processor = Qwen3VLVideoProcessor(size=size, cap_pixels_per_frame=False, **HALVES)
    pixels = pictures(frames, frames, height, width, 3)
    theirs = processor(videos=[pixels], do_sample_frames=False, return_tensors="np")
    np.testing.assert_allclose(video_rows(pixels, PatchConfig()), theirs["pixel_values_videos"], rtol=0, atol=1e-6)
