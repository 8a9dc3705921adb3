import random

import pytest
import torch

from training import world


def draw(canvas="16:9", n=9, seed=3):
    return world.sample_specs(n, world.CANVASES[canvas], torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("canvas", world.CANVASES)
def test_the_same_seed_renders_the_same_clip_inside_its_canvas(canvas):
    first, second = (world.render(draw(canvas), 22) for _ in range(2))
    assert torch.equal(first.video_B3FHW, second.video_B3FHW)
    size = world.CANVASES[canvas]
    assert first.video_B3FHW.shape == (9, 3, 22, size.height, size.width)
    assert first.video_B3FHW.min() >= 0
    assert first.video_B3FHW.max() <= 1
    coverage = first.mask_B1FHW.sum((-1, -2))
    assert coverage.min() > 60  # the whole of the smallest object stays in the picture


def test_a_shorter_clip_is_the_start_of_a_longer_one():
    short, long = world.render(draw(), 22), world.render(draw(), 56)
    assert torch.equal(short.video_B3FHW, long.video_B3FHW[:, :, :22])
    sounds = [world.audio_for(draw(), clip.motion, frames) for clip, frames in ((short, 22), (long, 56))]
    assert torch.allclose(sounds[0], sounds[1][..., : sounds[0].shape[-1]], atol=1e-5)


def test_every_event_lies_on_the_clock_of_the_audio_latents():
    motion = world.trajectory(draw(n=200), 124)
    ticks = motion.event_s[motion.event_valid] * 40
    assert torch.allclose(ticks, ticks.round(), atol=1e-3)


def test_an_impact_sounds_when_the_object_touches_the_floor():
    specs = draw(n=200)
    bounce = (specs.attributes["motion"] == world.BOUNCE).nonzero()[0]
    motion = world.trajectory(specs[bounce], 124)
    impact_frame = (motion.event_s[0, 0] * world.FPS).round().long()
    assert motion.y_px[0].argmax() % 12 == impact_frame % 12


def test_what_stays_is_silent_and_clips_differ_in_loudness_by_their_sound_alone():
    specs = draw(n=300)
    sound = world.audio_for(specs, world.trajectory(specs, 56), 56).abs().amax((1, 2))
    silent = specs.attributes["sound"] == world.SILENT
    assert (specs.attributes["sound"][specs.attributes["motion"] == world.STAY] == world.SILENT).all()
    assert sound[silent].max() < 1e-5
    assert sound[~silent].min() > 0.1


@pytest.mark.parametrize("kind", ["t2va", "fl2va", "ref2va"])
def test_a_prompt_is_a_function_of_its_generator_and_names_what_it_keeps(kind):
    described = world.describe(draw(), 0) | {"motion": "bounce", "color": "green", "shape": "triangle"}
    texts = [world.prompt(described, random.Random(seed), kind) for seed in range(40)]
    assert texts == [world.prompt(described, random.Random(seed), kind) for seed in range(40)]
    for text, kept in texts:
        assert ("color" in kept) == ("green" in text.lower())
        assert "motion" in kept
