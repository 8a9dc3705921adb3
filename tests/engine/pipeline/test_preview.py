"""What a step works towards, as a picture."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.preview import Peek, decode_still, to_jpeg
from talkies.engine.pipeline.step import denoise_step
from talkies.errors import NumericsError
from talkies.request import Target, VideoRequest
from talkies.sampling.euler import euler_step


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


def test_x0_is_what_the_step_worked_with(engine):
    request = VideoRequest(prompt="x", num_sigmas=5, target=Target(num_frames=22))
    components = engine.components
    state = pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, request)))
    while not state.done:
        before, step = state.video_rows.clone(), state.schedule.step(state.step).video
        peek = Peek(state)
        denoise_step(components, state)
        latent = peek.x0(state)
        g = state.geometry
        assert latent.shape == (4, g.latent_height, g.latent_width)
        # Taking that x0 as the velocity's end gives the same step again.
        rows = slice((g.latent_frames // 2) * g.rows_per_frame, (g.latent_frames // 2 + 1) * g.rows_per_frame)
        patch = (
            latent.reshape(4, g.latent_height // 2, 2, g.latent_width // 2, 2).permute(1, 3, 0, 2, 4).reshape(-1, 16)
        )
        velocity = (patch - before[rows]) / (1 - step.t)
        assert torch.allclose(euler_step(before[rows], velocity, step), state.video_rows[rows], atol=1e-3)
    last = pipeline.target_latents(state)[0][0, :, state.geometry.latent_frames // 2]
    assert torch.allclose(latent, last, atol=1e-6)  # the last x0 is the clip


def object_rgb(pixels):
    """Mean colour of the object, 0..255: the three percent of pixels that are least grey."""
    flat = np.asarray(pixels, float).reshape(-1, 3)
    colourful = flat.max(1) - flat.min(1)
    return flat[colourful >= np.quantile(colourful, 0.97)].mean(0)


@pytest.mark.parametrize("colour", ["red", "green", "purple"])
def test_a_preview_has_the_clips_colours(embedded_engine, colour):
    prompt = f"a {colour} ball slides left slowly on a dark background with a drum sound"
    components = embedded_engine.components
    request = VideoRequest(prompt=prompt, num_sigmas=12)
    state = pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, request)))
    while state.step < 7:
        peek = Peek(state)
        denoise_step(components, state)
    preview = decode_still(components.video, peek.x0(state)).numpy()
    while not state.done:
        denoise_step(components, state)
    clip = torch.cat(list(components.video.decode(pipeline.target_latents(state)[0]))).numpy()
    middle = clip[len(clip) // 2]
    assert preview.shape == middle.shape
    assert np.abs(object_rgb(preview) - object_rgb(middle)).max() < 20
    assert np.abs(np.median(preview, (0, 1)) - np.median(middle, (0, 1))).max() < 8  # the background


def test_a_large_picture_is_thinned_and_keeps_its_colours(embedded_engine, monkeypatch):
    components = embedded_engine.components
    frames = torch.zeros(1, 96, 128, 3, dtype=torch.uint8)
    frames[:, :, :64] = torch.tensor((220, 40, 40), dtype=torch.uint8)
    frames[:, :, 64:] = torch.tensor((40, 60, 220), dtype=torch.uint8)
    latent = components.video.encode(frames.expand(22, -1, -1, -1).contiguous())[0, :, 3]
    whole = decode_still(components.video, latent)
    monkeypatch.setattr("talkies.engine.pipeline.preview.DECODED_SIDE", 64)
    thin = decode_still(components.video, latent)
    assert (whole.shape, thin.shape) == ((96, 128, 3), (48, 64, 3))
    for half in (slice(0, 24), slice(40, 64)):
        of_whole = whole[:, 2 * half.start : 2 * half.stop].float().mean((0, 1))
        assert (thin[:, half].float().mean((0, 1)) - of_whole).abs().max() < 40


def test_a_jpeg_of_the_clips_shape():
    noise = torch.randint(0, 255, (64, 96, 3), dtype=torch.uint8)
    image = Image.open(io.BytesIO(to_jpeg(noise, width=96, height=64)))
    assert (image.format, image.size, image.mode) == ("JPEG", (96, 64), "RGB")
    large = Image.open(io.BytesIO(to_jpeg(noise, width=1344, height=768)))
    assert large.size == (320, 183)


def test_a_latent_that_is_not_finite_has_no_picture(engine):
    with pytest.raises(NumericsError):
        decode_still(engine.components.video, torch.full((4, 4, 6), float("nan")))
