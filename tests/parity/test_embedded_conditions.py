"""The embedded folder with keyframes and with references, in diffusers' modular pipeline and in ours: the same clip.

Latents and sound decide. Two seeds of one prompt are up to 49.5 dB apart in frames alone, so frames prove little.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.condition_media import SoundInput, VisualInput
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.pipeline.tasks import Prepared
from talkies.h3.clip_plan import plan
from talkies.media.read.resize import resize_reference_image
from talkies.request import Condition, Target, Task, VideoRequest
from talkies.sampling.noise import external
from tests.tiny_checkpoint import Processor

WIDTH, HEIGHT, FRAMES, POINTS, SEED = 64, 64, 124, 6, 11
TARGET = Target(width=WIDTH, height=HEIGHT, num_frames=FRAMES)
PROMPTS = {
    "first and last": "the ball bounces with a bell sound",
    "references": "the object from picture 1 slides left with the sound of audio 1",
}


def ball(x, y):
    picture = Image.new("RGB", (WIDTH, HEIGHT), (20, 20, 24))
    ImageDraw.Draw(picture).ellipse((x - 9, y - 9, x + 9, y + 9), fill=(220, 40, 40))
    return picture


def bell():
    """Half a second at 32 kHz, both channels."""
    t = np.arange(16_000) / 32_000
    wave = np.sin(2 * np.pi * 880 * t) * np.exp(-6 * t) * 0.5
    return np.stack([wave, wave]).astype("float32")


FIRST, LAST, PICTURE, SOUND = ball(20, 20), ball(44, 44), ball(32, 32), bell()


@pytest.fixture(scope="module")
def oracle(embedded_engine):
    from diffusers.modular_pipelines import MiniMaxH3Blocks
    from transformers import AutoTokenizer

    c = embedded_engine.components
    folder = c.parts.root
    pipe = MiniMaxH3Blocks().init_pipeline(str(folder))
    pipe.load_components(torch_dtype=torch.float32)
    pipe.update_components(processor=Processor(AutoTokenizer.from_pretrained(folder / "tokenizer")))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def references():
    from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3AudioReference, MiniMaxH3ImageReference

    return [
        MiniMaxH3ImageReference(image=PICTURE),
        MiniMaxH3AudioReference(audio=torch.from_numpy(SOUND), sample_rate=32_000),
    ]


def prepared_of(case, components, folder):
    if case == "references":
        conditions = tuple(Condition(kind=kind, uri="in memory") for kind in ("image", "audio"))
        request = VideoRequest(prompt=PROMPTS[case], num_sigmas=POINTS, conditions=conditions, target=TARGET)
        frames = resize_reference_image(np.asarray(PICTURE), components.limits)[None]
        inputs = (VisualInput(kind="image", frames=frames), SoundInput(wave=SOUND))
        geometry = plan(request, components.limits)
        return Prepared(request=request, task=Task.REF2VA, geometry=geometry, inputs=inputs)
    conditions = []
    for role, picture in (("first", FIRST), ("last", LAST)):
        picture.save(folder / f"{role}.png")
        conditions.append(Condition(kind="image", uri=str(folder / f"{role}.png"), role=role))
    request = VideoRequest(prompt=PROMPTS[case], num_sigmas=POINTS, conditions=tuple(conditions), target=TARGET)
    return pipeline.prepare(components, request)


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("case", PROMPTS)
def test_latents_and_sound_are_the_same(embedded_engine, oracle, tmp_path, case):
    c = embedded_engine.components
    prepared = prepared_of(case, c, tmp_path)
    encoded = pipeline.encode(c, prepared)
    config = c.dits["ref2va" if case == "references" else "fl2va"].config
    g = torch.Generator().manual_seed(SEED)  # the port: each condition, then video, then audio
    noise = [torch.randn(z.shape, generator=g) for z in encoded.visual_latents]
    geometry = prepared.geometry
    size = (geometry.latent_frames, geometry.latent_height, geometry.latent_width)
    video = torch.randn(1, config.in_channels, *size, generator=g)
    audio = torch.randn(2 * geometry.audio_latents, config.audio_in_channels, generator=g)
    state = pipeline.pack(c, encoded, noise=external(video, audio, noise, patch_size=config.patch_size))
    while not state.done:
        denoise_step(c, state)

    media = {"references": references()} if case == "references" else {"image": FIRST, "last_image": LAST}
    theirs = oracle(
        prompt=PROMPTS[case],
        num_inference_steps=POINTS,
        height=HEIGHT,
        width=WIDTH,
        num_frames=FRAMES,
        generator=torch.Generator().manual_seed(SEED),
        output_type="pt",
        **media,
    )
    assert torch.equal(state.layout.positions, theirs.get("position_ids").reshape(-1, 3))
    states = theirs.get("prompt_embeds")
    assert relative(encoded.text.states, states.reshape(encoded.text.states.shape)) <= 1e-4
    video, audio = pipeline.target_latents(state)
    assert relative(video, theirs.get("latents")) <= 1e-3
    assert relative(audio, theirs.get("audio_latents")) <= 1e-3
    wave = pipeline.decode_audio(c, state)
    sound = theirs.get("audio")[0]  # of whole latents: ours ends with the picture
    kept = min(wave.shape[1], sound.shape[1])
    assert relative(torch.from_numpy(wave[:, :kept]), sound[:, :kept]) <= 1e-3
