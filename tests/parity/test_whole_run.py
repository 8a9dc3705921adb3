"""A whole request beside diffusers' modular pipeline: same weights, same noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.h3.packing import unpatchify_video
from talkies.request import Condition, Target, VideoRequest
from talkies.sampling.noise import external
from tests import tiny_checkpoint

FRAMES, SIZE, POINTS = 124, 64, 4


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


@pytest.fixture(scope="module")
def oracle(tiny_parts):
    return tiny_checkpoint.pipeline(tiny_parts)


def single_stream_noise(seed, num_conditions):
    """The port draws from one generator: each condition, then video, then audio."""
    g = torch.Generator().manual_seed(seed)
    conditions = [torch.randn(1, 4, 1, 4, 4, generator=g) for _ in range(num_conditions)]
    video = torch.randn(1, 4, 37, 4, 4, generator=g)
    audio = torch.randn(2 * 207, 8, generator=g)
    return external(video, audio, conditions, patch_size=(1, 2, 2))


def relative(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


def run_ours(engine, request, noise):
    with torch.inference_mode():
        encoded = pipeline.encode(engine.components, pipeline.prepare(engine.components, request))
        state = pipeline.pack(engine.components, encoded, noise=noise)
        while not state.done:
            denoise_step(engine.components, state)
    return state, encoded


def noise_picture(seed):
    rng = np.random.default_rng(seed)
    return Image.fromarray((rng.random((SIZE, SIZE, 3)) * 255).astype("uint8"))


@pytest.mark.parametrize("ends", [(), ("first",), ("last",), ("first", "last")], ids=lambda e: "+".join(e) or "t2va")
def test_latents_equal_the_port(engine, oracle, tmp_path, ends):
    pictures = {end: noise_picture(i) for i, end in enumerate(ends)}
    conditions = []
    for end, picture in pictures.items():
        picture.save(tmp_path / f"{end}.png")
        conditions.append(Condition(kind="image", uri=str(tmp_path / f"{end}.png"), role=end))
    request = VideoRequest(
        prompt="a robot dances",
        num_sigmas=POINTS,
        conditions=tuple(conditions),
        target=Target(width=SIZE, height=SIZE, num_frames=FRAMES),
    )
    state, encoded = run_ours(engine, request, single_stream_noise(0, len(ends)))
    names = {"first": "image", "last": "last_image"}
    theirs = oracle(
        prompt=request.prompt,
        num_inference_steps=POINTS,
        height=SIZE,
        width=SIZE,
        num_frames=FRAMES,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
        **{names[end]: picture for end, picture in pictures.items()},
    )
    assert relative(encoded.text.states, theirs.get("prompt_embeds").reshape(encoded.text.states.shape)) <= 1e-5
    assert torch.equal(state.layout.positions, theirs.get("position_ids").reshape(-1, 3))
    video, audio = pipeline.target_latents(state)
    assert relative(video, theirs.get("latents")) <= 1e-4
    assert relative(audio, theirs.get("audio_latents")) <= 1e-4

    frames = np.concatenate(list(pipeline.decode_video(engine.components, state)))
    expected = theirs.get("videos")[0].permute(0, 2, 3, 1).numpy()
    assert frames.shape == expected.shape
    assert np.abs(frames / 255.0 - expected).max() <= 1.5 / 255
    wave = pipeline.decode_audio(engine.components, state)
    sound = theirs.get("audio")[0]  # of whole latents: ours ends with the picture
    assert wave.shape[1] == round(len(frames) / 24 * 32_000)
    kept = min(wave.shape[1], sound.shape[1])
    assert relative(torch.from_numpy(wave[:, :kept]), sound[:, :kept]) <= 1e-4
    assert not wave[:, kept:].any()


def test_condition_rows_are_the_same_bits_after_every_step(engine, tmp_path):
    noise_picture(3).save(tmp_path / "a.png")
    request = VideoRequest(
        prompt="x",
        num_sigmas=3,
        conditions=(Condition(kind="image", uri=str(tmp_path / "a.png"), role="first"),),
        target=Target(num_frames=22),
    )
    encoded = pipeline.encode(engine.components, pipeline.prepare(engine.components, request))
    state = pipeline.pack(engine.components, encoded)
    rows = state.layout.num_condition_video_rows
    before = state.video_rows[:rows].clone()
    assert rows > 0
    while not state.done:
        denoise_step(engine.components, state)
        assert torch.equal(state.video_rows[:rows], before)
    assert torch.isfinite(unpatchify_video(state.video_rows[rows:], 7, *state_size(state), (1, 2, 2))).all()


def state_size(state):
    return state.geometry.latent_height, state.geometry.latent_width
