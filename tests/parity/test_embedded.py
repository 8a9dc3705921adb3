"""The embedded folder in diffusers' own modular pipeline and in ours: 124 frames, same noise, the same clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.request import Target, VideoRequest
from talkies.sampling.noise import external
from tests.tiny_checkpoint import Processor

FRAMES, POINTS, SEED = 124, 20, 11
PROMPT = "a green triangle bounces quickly on a light background with a drum sound"


@pytest.fixture(scope="module")
def theirs(embedded_engine):
    from diffusers.modular_pipelines import MiniMaxH3Blocks
    from transformers import AutoTokenizer

    folder = embedded_engine.components.parts.root
    pipe = MiniMaxH3Blocks().init_pipeline(str(folder))
    pipe.load_components(torch_dtype=torch.float32)
    # Their processor class asks for torchvision; t2va calls nothing of it but its names.
    pipe.update_components(processor=Processor(AutoTokenizer.from_pretrained(folder / "tokenizer")))
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        prompt=PROMPT,
        num_inference_steps=POINTS,
        height=64,
        width=112,
        num_frames=FRAMES,
        generator=torch.Generator().manual_seed(SEED),
        output_type="pt",
    )


@pytest.fixture(scope="module")
def ours(embedded_engine):
    c = embedded_engine.components
    request = VideoRequest(
        prompt=PROMPT, num_sigmas=POINTS, target=Target(width=112, height=64, num_frames=FRAMES), seed=SEED
    )
    config = c.dits["fl2va"].config
    g = torch.Generator().manual_seed(SEED)
    prepared = pipeline.prepare(c, request)
    size = (prepared.geometry.latent_frames, prepared.geometry.latent_height, prepared.geometry.latent_width)
    video = torch.randn(1, config.in_channels, *size, generator=g)
    audio = torch.randn(2 * prepared.geometry.audio_latents, config.audio_in_channels, generator=g)
    state = pipeline.pack(c, pipeline.encode(c, prepared), noise=external(video, audio, patch_size=config.patch_size))
    while not state.done:
        denoise_step(c, state)
    return state


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def test_latents_are_the_same(ours, theirs):
    video, audio = pipeline.target_latents(ours)
    assert relative(video, theirs.get("latents")) <= 1e-3
    assert relative(audio, theirs.get("audio_latents")) <= 1e-3


def test_the_clip_is_the_same(embedded_engine, ours, theirs):
    frames = np.concatenate(list(pipeline.decode_video(embedded_engine.components, ours))) / 255.0
    reference = theirs.get("videos")[0].permute(0, 2, 3, 1).numpy()
    assert frames.shape == reference.shape == (FRAMES, 64, 112, 3)
    assert 10 * np.log10(1 / np.mean((frames - reference) ** 2)) >= 40
    wave = pipeline.decode_audio(embedded_engine.components, ours)
    sound = theirs.get("audio")[0]  # of whole latents: ours ends with the picture
    assert wave.shape[1] == round(FRAMES / 24 * 32_000)
    kept = min(wave.shape[1], sound.shape[1])
    assert relative(torch.from_numpy(wave[:, :kept]), sound[:, :kept]) <= 1e-3
    assert not wave[:, kept:].any()
