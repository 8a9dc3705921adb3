"""The linear latent-to-RGB map and the picture made with it."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.preview import LatentToRGB, Peek, load_or_fit, to_jpeg
from talkies.engine.pipeline.step import denoise_step
from talkies.request import Target, VideoRequest
from talkies.sampling.euler import euler_step


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


@pytest.fixture(scope="module")
def fitted(engine):
    return LatentToRGB.fit(engine.components.video, engine.limits)


class LinearVAE:
    """A decoder that is exactly linear, so that a fit can be exact: each latent paints its own square."""

    def __init__(self, matrix, bias):
        self.matrix, self.bias = matrix, bias
        self.config = type("Config", (), {})()
        self.config.latent_channels = matrix.shape[0]
        self.config.temporal = type("Temporal", (), {"min_latents": 7})()

    def decode(self, latents):
        pixels = torch.einsum("cthw,cr->thwr", latents[0], self.matrix) + self.bias
        yield (pixels.clamp(0, 1) * 255).round().to(torch.uint8).repeat_interleave(4, 1).repeat_interleave(4, 2)


def test_a_linear_decoder_is_recovered(engine):
    matrix = 0.04 * torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    bias = torch.tensor([0.5, 0.4, 0.6])
    fit = LatentToRGB.fit(LinearVAE(matrix, bias), engine.limits)
    assert torch.allclose(fit.weights[:-1], matrix, atol=4e-3)
    assert torch.allclose(fit.weights[-1], bias, atol=4e-3)


def test_the_map_is_kept_by_model_and_a_broken_cache_costs_a_fit(engine, fitted, tmp_path, monkeypatch):
    video, limits = engine.components.video, engine.limits
    first = load_or_fit(video, limits, "abc", tmp_path)
    assert torch.equal(first.weights, fitted.weights)  # the fit is reproducible
    (kept,) = (tmp_path / "preview").iterdir()
    assert kept.name == "abc.safetensors"
    with monkeypatch.context() as m:
        m.setattr(LatentToRGB, "fit", None)
        assert torch.equal(load_or_fit(video, limits, "abc", tmp_path).weights, first.weights)
    kept.write_bytes(b"broken")
    assert torch.equal(load_or_fit(video, limits, "abc", tmp_path).weights, first.weights)
    file = tmp_path / "file"
    file.write_text("")
    assert load_or_fit(video, limits, "abc", file) is not None  # a folder that cannot be made is no reason to fail


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


def test_a_jpeg_of_the_clips_shape(fitted):
    latent = torch.randn(4, 4, 6)
    jpeg = to_jpeg(fitted(latent), width=96, height=64)
    image = Image.open(io.BytesIO(jpeg))
    assert (image.format, image.size, image.mode) == ("JPEG", (96, 64), "RGB")
    large = Image.open(io.BytesIO(to_jpeg(fitted(latent), width=1344, height=768)))
    assert large.size == (320, 183)


def test_nan_is_black_and_never_an_error(fitted):
    jpeg = to_jpeg(fitted(torch.full((4, 4, 6), float("nan"))), width=96, height=64)
    assert np.asarray(Image.open(io.BytesIO(jpeg))).max() <= 2
