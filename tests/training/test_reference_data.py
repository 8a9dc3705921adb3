"""References belong to their clips: the drawn still has the clip's look, the sound its timbre, the film its motion."""

import random
from types import SimpleNamespace

import pytest
import torch

from training import world
from training.codecs import audio_vae
from training.ref2va import reference_data, reference_prompts

CANVAS = world.CANVASES["16:9"]


def pixels_encoder():
    """In place of rows, the picture itself."""
    basis = audio_vae.basis()
    return SimpleNamespace(
        device="cpu",
        rows=lambda video: video,
        audio=lambda wave: audio_vae.project(wave, *basis).transpose(-1, -2),
        features=lambda pairs, canvas: (pairs.flatten(1, 2)[:, :1], pairs[:, :, 0]),
    )


def test_a_drawn_still_shows_the_clips_object():
    bank = reference_data.still_bank(pixels_encoder(), CANVAS, 2, 5, 64)
    specs = world.sample_specs(40, CANVAS, torch.Generator().manual_seed(1))
    for keep in (True, False):
        stills = bank.rows[bank.draw(specs.attributes, keep)]
        assert stills.shape == (40, 3, 1, 64, 112)
        color = torch.tensor(world.COLOR_RGB)[specs.attributes["color"]]
        distance = (stills[:, :, 0] - color[:, :, None, None]).abs().amax(1)
        area = (distance < 0.02).sum((1, 2)).float()
        assert (area > 60).all()
        by_size = [area[specs.attributes["size"] == size].mean() for size in range(3)]
        assert by_size[0] < by_size[1] < by_size[2]
        corner = stills[:, :, 0, 0, 50]
        background = torch.tensor(world.BACKGROUND_RGB)[specs.attributes["background"]]
        same = ((corner - background).abs().amax(1) < 0.02).float().mean()
        assert same == 1 if keep else 0.1 < same < 0.9


def test_a_drawn_sound_has_the_clips_timbre(monkeypatch):
    monkeypatch.setattr(reference_data, "OFF_CLOCK_SHARE", 0.0)  # off the clock, the basis mistakes a beep for a bell
    bank = reference_data.sound_bank(pixels_encoder(), 6, 3)
    drawn = bank.draw(torch.tensor([0, 1, 2] * 5))
    assert torch.equal(drawn // 6, torch.tensor([0, 1, 2] * 5))
    directions, scale = audio_vae.basis()
    spectra = [torch.fft.rfft(t.view(-1, 800)).abs().mean(0) for t in world.timbres()[:3]]
    frames = (bank.rows * scale) @ directions
    for index, sound in enumerate(frames):
        mine = torch.fft.rfft(sound.flatten(0, 1)).abs().mean(0)
        likeness = [torch.cosine_similarity(mine, s, 0) for s in spectra]
        assert int(torch.stack(likeness).argmax()) == index // 6


@pytest.mark.parametrize("num_frames", [22, 39, 56])
def test_a_target_begins_where_its_preceding_clip_ends(num_frames):
    specs = world.sample_specs(60, CANVAS, torch.Generator().manual_seed(2))
    start_s = reference_data.preceding_start_s(specs, num_frames)
    assert torch.allclose(start_s * 40, (start_s * 40).round(), atol=1e-4)
    before = world.trajectory(specs, num_frames + 1, start_s)
    target = world.trajectory(specs, 22)
    bounces = specs.attributes["motion"] == world.BOUNCE
    assert ((before.y_px[:, -1] - target.y_px[:, 0]).abs()[bounces] < 0.5).all()
    slides = (specs.attributes["motion"] == world.LEFT) | (specs.attributes["motion"] == world.RIGHT)
    assert torch.equal(before.x_px[slides, :22], target.x_px[slides])


@pytest.mark.parametrize("kind", reference_prompts.KINDS)
def test_a_prompt_names_its_references_and_no_others(kind):
    rng = random.Random(0)
    specs = world.sample_specs(200, CANVAS, torch.Generator().manual_seed(3))
    for i in range(200):
        line = reference_prompts.prompt(world.describe(specs, i), rng, kind).lower()
        assert ("video 1" in line) == kind.startswith("video")
        assert ("picture 1" in line) == (not kind.startswith("video"))
        if kind in ("image_audio", "audio_image"):
            assert "audio 1" in line
        if kind in ("image", "image_bare", "video_silent"):
            assert "audio 1" not in line
