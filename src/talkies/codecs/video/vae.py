"""The video VAE: frames <-> normalized latents (tests/parity/test_video_vae.py).

F frames, T latent frames, C latent channels, H W pixels, h w latents. The encoder is diffusers' module, built on
the first encode: a text-to-video request never imports it. The decoder is ours and is loaded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from talkies.codecs.finite import require_finite
from talkies.codecs.video.config import VideoVAEConfig
from talkies.codecs.video.tiles import TilePlan
from talkies.codecs.video.vit_decoder import ViTDecoder
from talkies.codecs.video.vit_weights import gather
from talkies.errors import CheckpointError, ConfigError
from talkies.files.component_folders import WeightFolder, fill, upcast
from talkies.h3 import vae_keys as keys
from talkies.kernels.select import REFERENCE, Ops

# The VAE's pixel convention: ImageNet statistics over 0..1, not -1..1.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
# Every condition restarts its posterior noise here, whatever the request's seed (tests/parity/test_video_vae.py).
POSTERIOR_SEED = 42
# Tiles decoded together: enough tokens to fill the device, few enough to keep the FFN's activations small.
TOKENS_PER_BATCH_CPU = 4_096
TOKENS_PER_BATCH_GPU = 16_384

ENCODER_KEYS = ("encoder.", "quant_conv.")  # of both layouts


class VideoVAE:
    """Encoder and decoder of one checkpoint on one device."""

    def __init__(self, config: VideoVAEConfig, decoder: ViTDecoder, device: torch.device) -> None:
        self.config = config
        self.decoder = decoder
        self.device = device
        self.on_tile: Callable[[], object] = lambda: None  # called before each tile, or batch of them
        self.on_encoder: Callable[[nn.ModuleDict], object] = lambda encoder: None  # called when it was loaded
        self._encoder: nn.ModuleDict | None = None
        self.bytes_read = 0  # stored bytes of the decoder's weights

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        weights_on: torch.device | str | None = None,
        ops: Ops = REFERENCE,
    ) -> VideoVAE:
        """Reads config and decoder weights from a ``vae/`` (port) or ``video_vae/`` (original) folder.

        ``dtype`` is what block linears and attention of the decoder run in: float32 on a CPU, float16 on a GPU for
        the released recipe. The encoder is float32 always. ``weights_on`` is where the decoder's weights are put, if
        whoever loads it brings them to ``device`` when they are needed. ``ops`` are the decoder's kernels. Raises
        ``CheckpointError``, or ``ConfigError`` for float16 on a CPU.
        """
        device = torch.device(device)
        if device.type == "cpu" and dtype == torch.float16:
            raise ConfigError(
                "float16 on a CPU is a thousand times slower than float32",
                hint="use float32 or bfloat16",
                param="dtype",
            )
        config = VideoVAEConfig.read(Path(folder))
        with torch.device("meta"):
            decoder = ViTDecoder(config.decoder, ops)
        decoder.compute_dtype = dtype
        stored = _read_port(config, ("decoder.", "post_quant_conv."))
        wanted = {
            key: tensor.to(device=weights_on or device, dtype=decoder.dtype_of(key))
            for key, tensor in gather(stored).items()
        }
        fill(decoder, wanted, f"{config.folder} decoder")
        vae = cls(config, decoder.eval(), device)
        vae.bytes_read = sum(tensor.nbytes for tensor in stored.values())
        return vae

    @property
    def encoder_is_loaded(self) -> bool:
        return self._encoder is not None

    def encoder_bytes(self) -> int:
        """Of the encoder's float32 weights, loaded or not: from the headers of the files, since the first encode may
        come long after memory was promised to others. Raises ``CheckpointError`` for files that cannot be read."""
        weights = self.config.weights()
        return 4 * sum(prod(weights.shape(key)) for key in weights.keys if key.startswith(ENCODER_KEYS))

    def load_encoder(self) -> None:
        """Builds and loads the encoder if that has not happened; costs an import of diffusers the first time."""
        if self._encoder is not None:
            return
        from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import MiniMaxH3VideoEncoder3d

        channels = 2 * self.config.latent_channels
        with torch.device("meta"):
            encoder = nn.ModuleDict(
                {
                    "encoder": MiniMaxH3VideoEncoder3d(**self.config.encoder_kwargs),
                    "quant_conv": nn.Conv3d(channels, channels, kernel_size=1),
                }
            )
        tensors = _read_port(self.config, ENCODER_KEYS)
        fill(encoder, {k: upcast(t, self.device) for k, t in tensors.items()}, f"{self.config.folder} encoder")
        self.on_encoder(encoder.eval())
        self._encoder = encoder

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """uint8 RGB [F, H, W, 3] -> normalized latents [1, C, T, h, w], float32 on the CPU.

        The posterior is sampled with CPU noise of seed 42 and rounded to float16 before it is normalized: both are
        part of the release. F = 1 gives T = 1; F = 17n + 5 gives T = 5n + 2; any other F repeats its last frame.
        """
        if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
            raise ValueError(f"frames are {frames.dtype} {list(frames.shape)}, not uint8 [F, H, W, 3]")
        self.load_encoder()
        pixels = frames.to(self.device).permute(3, 0, 1, 2)[None].float().div(255.0)
        pixels = (pixels - _channels(PIXEL_MEAN, pixels)) / _channels(PIXEL_STD, pixels)
        with _exact_float32(self.device):
            moments = self.config.temporal.encode(pixels, self._encode_clip)
        mean, logvar = moments.chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(POSTERIOR_SEED)).to(self.device)
        latents = mean + torch.exp(0.5 * logvar.clamp(-30.0, 20.0)) * noise
        return self.config.stats.normalize(require_finite(latents, "video encode").half().float().cpu())

    def _encode_clip(self, pixels: Tensor) -> Tensor:
        assert self._encoder is not None
        plan = self._plan(pixels.shape[-2], pixels.shape[-1])
        encoder, quant_conv = self._encoder["encoder"], self._encoder["quant_conv"]
        moments = []
        for tile in plan.cut(pixels):
            self.on_tile()
            moments.append(quant_conv(encoder(tile)))
        return plan.scaled(self.config.spatial_factor).stitch(moments)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Normalized latents [1, C, T, h, w] -> uint8 RGB chunks [f, H, W, 3] in order, on this VAE's device.

        One chunk per temporal clip (17 frames), then the tail (5): the first is ready long before the last, so an
        encoder can work beside it. Raises ``NumericsError`` when a chunk is not finite, ``InvalidRequest`` under one
        clip and tail.
        """
        for chunk in self._chunks(latents):
            yield _to_pixels(chunk).mul_(255.0).round_().to(torch.uint8)[0].permute(1, 2, 3, 0).contiguous()

    @torch.no_grad()
    def decode_float(self, latents: Tensor) -> Tensor:
        """As :meth:`decode`, whole and unrounded: float32 [1, 3, F, H, W] in 0..1."""
        return torch.cat([_to_pixels(chunk) for chunk in self._chunks(latents)], dim=2)

    @torch.no_grad()
    def _chunks(self, latents: Tensor) -> Iterator[Tensor]:
        z = self.config.stats.denormalize(latents.to(device=self.device, dtype=torch.float32))
        factor = self.config.spatial_factor
        plan = self._plan(z.shape[-2] * factor, z.shape[-1] * factor)

        def decode_window(window: Tensor) -> Tensor:
            return plan.stitch(self.decode_tiles(plan.scaled(factor).cut(window)))

        for chunk in self.config.temporal.decode(z, decode_window):
            yield require_finite(chunk, "video decode")

    @torch.no_grad()
    def decode_tiles(self, tiles: Sequence[Tensor]) -> list[Tensor]:
        """Latent tiles [1, C, t, h, w], all of one shape -> pixel tiles [1, 3, t*4, h*f, w*f], float32."""
        pixels: list[Tensor] = []
        for start, stop in _even(len(tiles), self._tiles_at_once(tiles[0])):
            self.on_tile()
            group = torch.cat(list(tiles[start:stop])).to(self.device)
            pixels.extend(self.decoder(group).split(1))
        return pixels

    def _tiles_at_once(self, tile: Tensor) -> int:
        """As many as the plan counts with, or on a GPU what there is room for, should that be less."""
        tokens = self.decoder.tokens_of(*tile.shape[-3:])
        if self.device.type == "cpu":
            return max(1, TOKENS_PER_BATCH_CPU // tokens)
        room = free_device_bytes(self.device) // self.decoder.bytes_of_token
        return max(1, min(TOKENS_PER_BATCH_GPU, room) // tokens)

    def _plan(self, height: int, width: int) -> TilePlan:
        return TilePlan.of(
            height,
            width,
            step=self.config.spatial_factor,
            tile=self.config.tile_pixels,
            min_overlap=self.config.min_overlap_pixels,
        )


def _read_port(config: VideoVAEConfig, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors under ``prefixes`` by port key, from either layout; refuses keys of no known part."""
    weights: WeightFolder = config.weights()
    parts = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")
    stray = sorted(k for k in weights.keys if not k.startswith(parts) and k not in keys.STATISTICS)
    if stray:
        raise CheckpointError(f"{config.folder}: unknown weights {', '.join(stray[:4])}", param=str(config.folder))
    wanted = [k for k in weights.keys if k.startswith(prefixes)]
    if not keys.is_original(weights.keys):
        return {key: weights.read(key) for key in wanted}
    port: dict[str, Tensor] = {}
    for key in wanted:
        port.update(keys.to_port(key, lambda key=key: weights.read(key), config.decoder.num_heads))  # type: ignore[misc]
    return port


def _even(count: int, at_most: int) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of the fewest batches, as even as can be: a short last one would leave a device half idle."""
    batches = -(-count // at_most)
    yield from pairwise(i * count // batches for i in range(batches + 1))


def free_device_bytes(device: torch.device) -> int:
    """What torch can still give out on a CUDA device, within the share of it that this process may have."""
    reserved = torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(total * torch.cuda.get_per_process_memory_fraction(device)) - reserved
    return max(0, min(free, allowed)) + reserved - torch.cuda.memory_allocated(device)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).view(1, 3, 1, 1, 1)


def _to_pixels(chunk: Tensor) -> Tensor:
    """ImageNet-normalized RGB -> 0..1, clamped."""
    return (chunk * _channels(PIXEL_STD, chunk) + _channels(PIXEL_MEAN, chunk)).clamp_(0, 1)


def _exact_float32(device: torch.device) -> AbstractContextManager[None]:
    """Convolutions without TF32: condition latents must not depend on the GPU's generation."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
