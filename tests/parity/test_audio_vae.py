"""The audio VAE against diffusers' AutoencoderKLMiniMaxH3Audio."""

from __future__ import annotations

import pytest
import torch

from talkies.codecs.audio.vae import AudioVAE
from tests.codecs import tiny


@pytest.fixture(scope="module")
def stock(tiny_parts):
    return tiny_parts["audio_vae"]


@pytest.fixture(scope="module")
def ours(tiny_folder):
    return AudioVAE.load(tiny_folder / "audio_vae")


def statistics(vae):
    return (torch.tensor(v).view(1, -1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))


@pytest.mark.parametrize(("samples", "latents"), [(1, 1), (800, 1), (32_000, 40), (32_001, 41)])
def test_encoding_is_the_normalized_posterior_mean(samples, latents, stock, ours):
    wave = torch.rand(2, samples, generator=torch.Generator().manual_seed(samples)) * 2 - 1
    mean, std = statistics(stock)
    with torch.no_grad():
        expected = (stock.encode(wave[:, None]).latent_dist.mode() - mean) / std
    z = ours.encode(wave)
    assert z.shape == (2, 8, latents)
    assert torch.equal(z, expected)
    assert torch.equal(ours.encode(wave), z)


@pytest.mark.parametrize("latents", [1, 41, 207])
def test_decoding_is_diffusers_waveform(latents, stock, ours):
    z = torch.randn(2, 8, latents, generator=torch.Generator().manual_seed(latents))
    mean, std = statistics(stock)
    with torch.no_grad():
        expected = stock.decode(z * std + mean).sample[:, 0]
    wave = ours.decode(z)
    assert wave.shape == (2, 800 * latents)
    assert torch.equal(wave, expected)
    assert wave.abs().max() <= 1


def test_the_original_layout_loads_to_the_same_model(stock, ours, tmp_path):
    tiny.save_original_audio_vae(stock, tmp_path)
    z = torch.randn(2, 8, 9)
    assert torch.equal(AudioVAE.load(tmp_path).decode(z), ours.decode(z))


def test_weights_stored_in_16_bits_run_in_float32(stock, tmp_path):
    tiny.write_json(tmp_path / "config.json", dict(stock.config))
    stored = {k: v.bfloat16() for k, v in stock.state_dict().items()}
    tiny.save_tensors(stored, tmp_path / "diffusion_pytorch_model.safetensors")
    ours = AudioVAE.load(tmp_path)
    assert {p.dtype for p in ours.model.parameters()} == {torch.float32}
    assert ours.decode(torch.randn(2, 8, 3)).dtype == torch.float32
