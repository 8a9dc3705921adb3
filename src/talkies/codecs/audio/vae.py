"""The audio VAE: stereo waveform <-> normalized latents (tests/parity/test_audio_vae.py). float32 always.

n samples per channel at ``sample_rate_hz``, C latent channels, Ta latents per channel, hop samples per latent.
The VAE is mono: left and right are two items of a batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from talkies.codecs.finite import require_finite
from talkies.codecs.latents import LatentStats
from talkies.errors import CheckpointError
from talkies.files.component_folders import WeightFolder, fill, stated, upcast
from talkies.files.json_files import read_json

# The released architecture; the original layout states only part of it (config.json and metadata.json).
RELEASE: Mapping[str, Any] = {
    "encoder_dim": 64,
    "encoder_rates": (2, 4, 4, 5, 5),
    "latent_dim": 2048,
    "latent_channels": 32,
    "num_attention_heads": 8,
    "decoder_dim": 1024,
    "decoder_rates": (5, 5, 2, 2, 2, 2, 2),
    "decoder_kernel_sizes": (9, 9, 4, 4, 4, 4, 4),
    "resblock_kernel_sizes": (3, 7, 11),
    "resblock_dilation_sizes": ((1, 3, 5), (1, 3, 5), (1, 3, 5)),
    "sampling_rate": 32_000,
}
ALIASES: Mapping[str, str] = {"sample_rate": "sampling_rate"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioVAEConfig:
    """Everything about an audio VAE that is not a weight."""

    folder: Path
    arch: Mapping[str, Any]  # the keys of RELEASE
    stats: LatentStats

    @property
    def sample_rate_hz(self) -> int:
        return int(self.arch["sampling_rate"])

    @property
    def hop(self) -> int:
        return math.prod(self.arch["encoder_rates"])

    @property
    def latent_channels(self) -> int:
        return int(self.arch["latent_channels"])

    @classmethod
    def read(cls, folder: Path) -> AudioVAEConfig:
        """From ``config.json`` and, in the original layout, the constructor arguments in ``metadata.json``."""
        config = read_json(folder / "config.json")
        arch = dict(RELEASE)
        if (folder / "metadata.json").is_file():
            metadata = read_json(folder / "metadata.json")
            arch |= stated(metadata.get("kwargs", metadata), RELEASE, ALIASES)
        arch |= stated(config, RELEASE, ALIASES)
        if math.prod(arch["encoder_rates"]) != math.prod(arch["decoder_rates"]):
            raise CheckpointError(
                f"{folder / 'config.json'}: the decoder upsamples by {math.prod(arch['decoder_rates'])}, "
                f"the encoder's hop is {math.prod(arch['encoder_rates'])}",
                param=str(folder),
            )
        stats = LatentStats.of_config(config, int(arch["latent_channels"]), str(folder / "config.json"))
        return cls(folder=folder, arch=arch, stats=stats)


class AudioVAE:
    """diffusers' module behind the two calls the engine needs. Deterministic: the mean is taken, never sampled."""

    def __init__(self, config: AudioVAEConfig, model: Any, device: torch.device) -> None:
        self.config = config
        self.model = model
        self.device = device
        self.bytes_read = 0  # stored bytes of its weights

    @classmethod
    def load(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> AudioVAE:
        """Reads an ``audio_vae/`` folder of either layout. There is no dtype to choose: 16-bit weights make the
        sound about 20 dB quieter, so stored 16-bit weights are upcast. Raises ``CheckpointError``."""
        from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

        device = torch.device(device)
        config = AudioVAEConfig.read(Path(folder))
        weights = WeightFolder(config.folder)
        with torch.device("meta"), warnings.catch_warnings():
            # The checkpoint's keys are those of torch's older weight_norm, which says so at every convolution.
            warnings.simplefilter("ignore", FutureWarning)
            model = AutoencoderKLMiniMaxH3Audio(**config.arch)
        fill(model, {key: upcast(weights.read(key), device) for key in weights.keys}, str(config.folder))
        for module in model.modules():
            # The same product g * v / |v| that each forward would compute again, once.
            if hasattr(module, "weight_g"):
                nn.utils.remove_weight_norm(module)
        vae = cls(config, model.requires_grad_(False).eval(), device)
        vae.bytes_read = weights.bytes_asked
        return vae

    @torch.no_grad()
    def encode(self, wave: Tensor) -> Tensor:
        """float32 [2, n] in -1..1 -> normalized latents [2, C, ceil(n / hop)], float32 on the CPU."""
        if wave.ndim != 2 or wave.shape[0] != 2 or not wave.shape[1]:
            raise ValueError(f"wave is {list(wave.shape)}, not [2, n]")
        with _reproducible(self.device):
            posterior = self.model.encode(wave.to(self.device, torch.float32)[:, None], return_dict=False)[0]
        return self.config.stats.normalize(require_finite(posterior.mode(), "audio encode").float().cpu())

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Normalized latents [2, C, Ta] -> float32 [2, hop * Ta] in -1..1, on the CPU.

        No loudness normalization and no limiter: the clamp is all. Raises ``NumericsError`` on NaN.
        """
        if latents.ndim != 3 or latents.shape[0] != 2:
            raise ValueError(f"latents are {list(latents.shape)}, not [2, C, Ta]")
        z = self.config.stats.denormalize(latents.to(self.device, torch.float32))
        with _reproducible(self.device):
            wave = self.model.decode(z, return_dict=False)[0]
        return require_finite(wave, "audio decode")[:, 0].cpu()


@contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
    """As the release encodes: no TF32, no cuDNN, math attention. On a CPU there is nothing to switch."""
    if device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), sdpa_kernel(SDPBackend.MATH):
        yield
