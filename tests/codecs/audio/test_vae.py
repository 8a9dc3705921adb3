from __future__ import annotations

import shutil

import pytest
import torch

from talkies.codecs.audio.vae import AudioVAE, AudioVAEConfig
from talkies.errors import CheckpointError, NumericsError
from tests.codecs import tiny
from tests.tiny_checkpoint import AUDIO_VAE


@pytest.fixture(scope="module")
def vae(tiny_folder):
    return AudioVAE.load(tiny_folder / "audio_vae")


def test_the_config_gives_rate_and_hop(vae):
    assert (vae.config.sample_rate_hz, vae.config.hop, vae.config.latent_channels) == (32_000, 800, 8)


def test_a_decode_that_is_not_finite_is_named(vae):
    z = torch.zeros(2, 8, 5)
    z[1, 2, 3] = float("nan")
    with pytest.raises(NumericsError, match="audio decode"):
        vae.decode(z)


@pytest.mark.parametrize("wave", [torch.zeros(32_000), torch.zeros(1, 32_000), torch.zeros(2, 0)])
def test_a_wave_that_is_not_stereo_is_refused(vae, wave):
    with pytest.raises(ValueError, match=r"not \[2, n\]"):
        vae.encode(wave)


def test_latents_without_two_channels_are_refused(vae):
    with pytest.raises(ValueError, match=r"not \[2, C, Ta\]"):
        vae.decode(torch.zeros(8, 5))


def test_results_are_ordinary_tensors(vae):
    wave = vae.decode(torch.zeros(2, 8, 3))
    wave += 1
    assert wave.device.type == "cpu"


def test_rates_that_disagree_are_refused(tmp_path):
    tiny.write_json(tmp_path / "config.json", {**AUDIO_VAE, "decoder_rates": [5, 5, 4, 4]})
    with pytest.raises(CheckpointError, match="upsamples by 400"):
        AudioVAEConfig.read(tmp_path)


def test_a_missing_weight_is_named(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder / "audio_vae", tmp_path / "audio_vae")
    config = {**AUDIO_VAE, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1], [1]]}
    tiny.write_json(folder / "config.json", config)
    with pytest.raises(CheckpointError, match=r"missing weights decoder\.resblocks"):
        AudioVAE.load(folder)
