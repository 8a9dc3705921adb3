"""A ref2va request beside diffusers' modular pipeline: same weights, same noise, the media already decoded."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.condition_media import SoundInput, VisualInput
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.pipeline.tasks import Prepared
from talkies.h3.clip_plan import plan
from talkies.media.read.resize import resize_reference_image
from talkies.request import Condition, Target, Task, VideoRequest
from talkies.sampling.noise import external
from tests import tiny_checkpoint

FRAMES, SIZE, POINTS = 124, 64, 4
PICTURE = (np.random.default_rng(0).random((48, 80, 3)) * 255).astype("uint8")
FILM = (np.random.default_rng(1).random((30, 64, 64, 3)) * 255).astype("uint8")
SOUNDTRACK = (np.random.default_rng(2).random((2, 32_000)) * 2 - 1).astype("float32")
SOUND = (np.random.default_rng(3).random((2, 16_000)) * 2 - 1).astype("float32")
CASES = {
    "image": ("image",),
    "video with sound": ("video",),
    "silent video": ("silent",),
    "image and sound": ("image", "audio"),
    "mixed": ("audio", "video", "image", "silent"),
}


@pytest.fixture(scope="module")
def engine(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both") / "checkpoint"
    shutil.copytree(tiny_folder, folder)
    shutil.copytree(folder / "transformer", folder / "transformer_ref")
    return Engine.open(folder)


@pytest.fixture(scope="module")
def oracle(tiny_parts):
    pipe = tiny_checkpoint.pipeline(tiny_parts)
    pipe.update_components(
        transformer_ref=pipe.transformer,
        reference_image_short_edge=64,
        canvas_short_edge=64,
        canvas_max_pixels=64 * 96,
    )
    return pipe


def inputs_of(names, limits):
    made = {
        "image": lambda: VisualInput(kind="image", frames=resize_reference_image(PICTURE, limits)[None]),
        "video": lambda: VisualInput(kind="video", frames=FILM, wave=SOUNDTRACK),
        "silent": lambda: VisualInput(kind="video", frames=FILM[::-1].copy()),
        "audio": lambda: SoundInput(wave=SOUND),
    }
    return tuple(made[name]() for name in names)


def references_of(names):
    from diffusers.modular_pipelines.minimax_h3 import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    made = {
        "image": lambda: MiniMaxH3ImageReference(image=Image.fromarray(PICTURE)),
        "video": lambda: MiniMaxH3VideoReference(
            frames=FILM, fps=24.0, audio=torch.from_numpy(SOUNDTRACK), sample_rate=32_000
        ),
        "silent": lambda: MiniMaxH3VideoReference(frames=FILM[::-1].copy(), fps=24.0),
        "audio": lambda: MiniMaxH3AudioReference(audio=torch.from_numpy(SOUND), sample_rate=32_000),
    }
    return [made[name]() for name in names]


def relative(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("names", CASES.values(), ids=CASES)
def test_latents_equal_the_port(engine, oracle, names):
    c = engine.components
    kinds = {"silent": "video"}
    conditions = tuple(Condition(kind=kinds.get(name, name), uri="in memory") for name in names)
    target = Target(width=SIZE, height=SIZE, num_frames=FRAMES)
    request = VideoRequest(prompt="a robot dances", num_sigmas=POINTS, conditions=conditions, target=target)
    prepared = Prepared(
        request=request,
        task=Task.REF2VA,
        geometry=plan(request, c.limits),
        inputs=inputs_of(names, c.limits),
    )
    encoded = pipeline.encode(c, prepared)

    g = torch.Generator().manual_seed(0)  # the port: each condition, then video, then audio
    noise = [torch.randn(z.shape, generator=g) for z in encoded.visual_latents]
    video, audio = torch.randn(1, 4, 37, 4, 4, generator=g), torch.randn(2 * 207, 8, generator=g)
    state = pipeline.pack(c, encoded, noise=external(video, audio, noise, patch_size=(1, 2, 2)))
    anchors = state.video_rows[: state.layout.num_condition_video_rows].clone()
    while not state.done:
        denoise_step(c, state)
        assert torch.equal(state.video_rows[: anchors.shape[0]], anchors)

    theirs = oracle(
        prompt=request.prompt,
        references=references_of(names),
        num_inference_steps=POINTS,
        height=SIZE,
        width=SIZE,
        num_frames=FRAMES,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    )
    assert torch.equal(state.layout.positions, theirs.get("position_ids").reshape(-1, 3))
    assert torch.equal(state.layout.tags.long(), theirs.get("token_tags").reshape(-1).long())
    states = theirs.get("prompt_embeds")
    assert relative(encoded.text.states, states.reshape(encoded.text.states.shape)) <= 1e-5
    for ours, other in zip(encoded.visual_latents, theirs.get("condition_latents"), strict=True):
        assert torch.equal(ours.reshape(-1), other.reshape(-1))
    for ours, other in zip(encoded.audio_rows, theirs.get("audio_condition_latents"), strict=True):
        assert relative(ours, other) <= 1e-5
    video, audio = pipeline.target_latents(state)
    assert relative(video, theirs.get("latents")) <= 1e-4
    assert relative(audio, theirs.get("audio_latents")) <= 1e-4
