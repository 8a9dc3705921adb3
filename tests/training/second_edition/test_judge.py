"""The judge reads the second edition's bigger, lit clips as well as the first edition's, whose scale it keeps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tests.meaning.test_judge import rates, soften, to_uint8
from training import world as first_edition
from training.judge.picture import shrink
from training.judge.verdict import judge
from training.second_edition import world


def clips(num_frames: int, per_canvas: int, seed: int):
    found = []
    for index, canvas in enumerate(world.CANVASES.values()):
        specs = world.sample_specs(per_canvas, canvas, torch.Generator().manual_seed(seed + index))
        rendered = world.render(specs, num_frames)
        waves = world.audio_for(specs, rendered.motion, num_frames).numpy()
        videos = rendered.video_B3FHW.permute(0, 2, 3, 4, 1).numpy()
        found += [(videos[i], waves[i], world.describe(specs, i)) for i in range(per_canvas)]
    return found


@pytest.mark.parametrize(("num_frames", "per_canvas"), [(22, 5), (56, 3)])
def test_every_attribute_of_rendered_clips_is_read(num_frames, per_canvas):
    truth = clips(num_frames, per_canvas, seed=300)
    shown = Counter(value for *_, attributes in truth for value in attributes.items())
    if num_frames == 22:
        assert all(shown[name, value] for name, values in first_edition.ATTRIBUTES.items() for value in values)
    share = rates([judge(to_uint8(video), wave) for video, wave, _ in truth], truth)
    assert min(share[name] for name in (*first_edition.ATTRIBUTES, "events", "offset")) >= 0.99, share


def test_a_blurred_and_grainy_clip_is_read_too():
    rng = np.random.default_rng(0)
    truth = clips(39, 2, seed=500)
    share = rates([judge(to_uint8(soften(video, rng)), wave) for video, wave, _ in truth], truth)
    assert min(share[name] for name in (*first_edition.ATTRIBUTES, "offset")) >= 0.9, share


def test_a_clip_beside_the_wrong_words_is_not_what_was_asked_for():
    truth = clips(22, 3, seed=700)
    share = rates([judge(to_uint8(video), wave) for video, wave, _ in truth], truth[4:] + truth[:4])
    assert share["all"] < 0.1
    assert share["color"] < 0.5


def test_a_picture_is_read_at_a_short_edge_of_64():
    picture = np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3)
    assert shrink(picture, 1) is picture
    half = shrink(picture, 2)
    assert half.shape == (2, 2, 2, 3)
    assert half[1, 0, 1, 2] == picture[1, :2, 2:, 2].mean()
