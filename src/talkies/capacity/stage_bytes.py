"""Bytes of weights and of what each stage of a request holds at its highest point, from sizes alone. No torch calls.

The terms are the allocations of the code, one by one; the names beside them are the lines that make them. S rows of a
forward, D hidden, I attention width, F feed-forward, e bytes of the block dtype. Kernels are the fused ones of a GPU;
the references of a CPU hold more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import prod

from talkies.capacity.forward_bytes import forward_rates
from talkies.capacity.text_bytes import TextSizes, layer_token_bytes, text_layer_bytes
from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.h3.geometry import tiles_along
from talkies.model.chunking import Chunking
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.placement.quantize import QuantizeConfig, quantized_names
from talkies.placement.stream.flat import padded
from talkies.placement.stream.layerwise import LayerwiseConfig, streamed_positions

WORKSPACE = 96 << 20  # cuBLAS (32 MiB on Hopper) and what other libraries keep in the allocator


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoSizes:
    """The video VAE's decoder, whose linears are 16-bit on a GPU, and its tiles; the defaults are the released one's.

    ``pixels_per_token``: float32 values that a token becomes; ``extra_tokens``: registers and the zero token of a
    tile; ``window_*`` and ``clip_*``: lengths of one decoded window and of what it adds to the clip.
    """

    width: int = 2048
    num_layers: int = 36
    ffn_mult: int = 4
    latent_channels: int = 24
    pixels_per_token: int = 3 * 4 * 16 * 16
    extra_tokens: int = 5
    batch_tokens: int = 16_384
    tile_pixels: int = 256
    tile_overlap: int = 64
    spatial_factor: int = 16
    window_latents: int = 7
    clip_latents: int = 5
    window_frames: int = 28
    clip_frames: int = 17
    linear_bytes: int = 2

    @property
    def layer_parameters(self) -> int:
        inner = self.width * self.ffn_mult
        return 4 * self.width**2 + 3 * self.width * inner + 5 * self.width + 2 * inner

    @property
    def layer_bytes(self) -> int:
        """Linears in their dtype, the two norms and two layer scales in float32."""
        return self.layer_parameters * self.linear_bytes + 4 * self.width * 4

    @property
    def rest_bytes(self) -> int:
        """Of all but the layers: projections, registers and norms in float32."""
        return 4 * (self.width * (self.latent_channels + self.pixels_per_token + self.extra_tokens + 4))

    def tiles(self, width: int, height: int) -> int:
        """Tiles of one window of a picture of so many pixels."""
        along = (tiles_along(side, tile=self.tile_pixels, min_overlap=self.tile_overlap) for side in (width, height))
        return prod(along)

    def tile_tokens(self, width: int, height: int) -> int:
        """Tokens of one tile of one window."""
        sides = prod(min(side, self.tile_pixels) // self.spatial_factor for side in (width, height))
        return self.window_latents * sides + self.extra_tokens

    def windows(self, latent_frames: int) -> int:
        """Windows that a clip is decoded in, at least one."""
        return max(1, (latent_frames - self.window_latents) // self.clip_latents + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """All components of one checkpoint. ``block_bytes`` is e, the bytes of a value in the block dtype: 2 on a GPU."""

    dit: DiTConfig = field(default_factory=DiTConfig)
    text: TextSizes = field(default_factory=TextSizes)
    video: VideoSizes = field(default_factory=VideoSizes)
    audio_parameters: int = 151_000_000
    audio_sample_bytes: int = 976  # of a stereo sample in the audio decoder
    block_bytes: int = 2
    num_partitions: int = 1
    tensor_parallel: int = 1  # devices that share the DiT; ``dit`` is one's share


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One request as the stages see it. ``rows``: of a forward, text and conditions included."""

    rows: int
    video_rows: int
    audio_rows: int
    text_tokens: int
    latent_frames: int
    width: int
    height: int
    num_frames: int
    num_samples: int
    num_forwards: int


# Weights.


@cache
def block_bytes(config: DiTConfig, quantize: QuantizeConfig, size: int) -> tuple[int, ...]:
    """Of each block without AdaLN, in its flat buffer; ``size`` is e."""
    chosen = quantized_names(quantize, config)
    return tuple(_module_bytes(config, f"blocks.{i}", chosen, size) for i in range(config.num_layers))


@cache
def refiner_bytes(config: DiTConfig, size: int) -> tuple[int, ...]:
    """Of each block of the text refiner, which is never quantised."""
    return tuple(
        _module_bytes(config, f"token_refiner.blocks.{i}", frozenset(), size) for i in range(config.num_refiner_layers)
    )


@cache
def top_bytes(config: DiTConfig, size: int) -> int:
    """Outside the stacks and AdaLN: stays on the device."""
    specs = [s for s in keys.top_specs(config) if not s.adaln and not s.name.startswith("token_refiner.blocks.")]
    return sum(prod(s.shape) * (4 if s.island else size) for s in specs)


def _module_bytes(config: DiTConfig, path: str, chosen: frozenset[str], size: int) -> int:
    total = 0
    for spec in keys.block_specs(config, "", adaln=False):
        fp8 = spec.name.endswith(".weight") and f"{path}.{spec.name.removesuffix('.weight')}" in chosen
        total += padded(prod(spec.shape) * (1 if fp8 else size)) + (padded(4 * spec.shape[0]) if fp8 else 0)
    return total


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of one component: always on the device, there while it works, and in host memory."""

    fixed: int
    visiting: int
    host: int


def dit_weights(sizes: Sizes, quantize: QuantizeConfig, layerwise: LayerwiseConfig | None) -> Weights:
    """All partitions; one works at a time."""
    config, size, n = sizes.dit, sizes.block_bytes, sizes.num_partitions
    blocks, refiner = block_bytes(config, quantize, size), refiner_bytes(config, size)
    top = top_bytes(config, size)
    positions = () if layerwise is None else streamed_positions(config.num_layers, layerwise)
    if layerwise is None:
        return Weights(n * (top + sum(blocks) + sum(refiner)), 0, 0)
    streamed = [blocks[p] for p in positions]
    resident = sum(blocks) - sum(streamed)
    visiting = min(layerwise.slots, len(streamed)) * max(streamed, default=0)
    host = sum(streamed)
    if len(refiner) > 1:  # one refiner block sits in its slot for good
        host += sum(refiner)
    else:
        resident += sum(refiner)
    return Weights(n * (top + resident), visiting, n * host)


def text_weights(sizes: Sizes, where: str, slots: int = 2, quantize: QuantizeConfig | None = None) -> Weights:
    """``where`` as in ``components.Where``; ``slots`` are a stream's, where it streams."""
    t, size = sizes.text, sizes.block_bytes
    layers = text_layer_bytes(t, quantize or QuantizeConfig(), size)
    whole = sum(layers) + t.rest_parameters * size
    return _weights(where, max(layers), t.num_layers, t.visiting_rest_parameters(slots) * size, slots, whole=whole)


def video_weights(sizes: Sizes, where: str, slots: int = 2) -> Weights:
    """Of the decoder; the encoder is no part of a plan."""
    v = sizes.video
    return _weights(where, v.layer_bytes, v.num_layers, v.rest_bytes, slots)


def audio_weights(sizes: Sizes, where: str) -> Weights:
    """Encoder and decoder in float32; it has no layers to stream."""
    return _weights(where, 0, 0, 4 * sizes.audio_parameters, 1)


def _weights(where: str, layer: int, num_layers: int, rest: int, slots: int, whole: int | None = None) -> Weights:
    """``layer`` is the largest one; ``whole`` is for layers that differ."""
    whole = num_layers * layer + rest if whole is None else whole
    if where == "resident":
        return Weights(whole, 0, 0)
    if where == "evicted" or num_layers <= slots:
        return Weights(0, whole, whole)
    return Weights(0, slots * layer + rest, whole)


# Activations.


def forward_bytes(
    sizes: Sizes, rows: int, chunking: Chunking, *, fp8: bool = False, fp8_attention: bool = False
) -> int:
    """The most that a forward of ``rows`` holds besides weights."""
    rates = forward_rates(sizes.dit, sizes.block_bytes, chunking, fp8=fp8, fp8_attention=fp8_attention)
    return round(rates.bytes(rows))


def held_bytes(sizes: Sizes, work: Work) -> int:
    """Of one request between its steps: rows and anchors, rotary tables, text, two steps of modulation or, of a small
    model, all of them."""
    c, e = sizes.dit, sizes.block_bytes
    rows = 4 * 4 * (work.video_rows * c.video_row_dim + work.audio_rows * c.audio_in_channels)
    rotary = work.rows * 2 * c.num_angles * e
    text = work.text_tokens * (c.hidden_size + c.text_dim) * e
    step = 4 * c.num_layers * 6 * c.hidden_size * e
    return rows + rotary + text + max(2 * step, min(WHOLE_BYTES, work.num_forwards * step))


def table_bytes(sizes: Sizes, work: Work) -> int:
    """Building a schedule's modulation: the table, and one block's AdaLN matrix at a time (two while they change)."""
    c, e = sizes.dit, sizes.block_bytes
    table = 3 * work.num_forwards * c.num_layers * 6 * c.hidden_size * e
    return table + 2 * (c.time_embed_dim + 1) * c.adaln_out_features * e


def encode_bytes(sizes: Sizes, work: Work, *, fp8: bool = False) -> int:
    """Text of ``text_tokens``; with ``fp8`` the e4m3 copy of the widest product's input besides."""
    t = sizes.text
    return work.text_tokens * (layer_token_bytes(t.width, t.inner, sizes.block_bytes) + (t.inner + 4 if fp8 else 0))


def decode_bytes(sizes: Sizes, work: Work) -> int:
    """One batch of tiles in the ViT, all pixel tiles of a window, the stitched window and its chunks."""
    v = sizes.video
    tile_tokens, tiles = v.tile_tokens(work.width, work.height), v.tiles(work.width, work.height)
    batch = min(tiles, max(1, v.batch_tokens // tile_tokens))
    inner, w, e = v.width * v.ffn_mult, v.width, v.linear_bytes
    attention = e * 7 * w + 4 * 2 * w  # qkv, rotated q and k with their float32 norms, output
    feed_forward = e * (3 * inner + w)
    token = 4 * 3 * w + max(attention, feed_forward)  # stream, its sum, the norm; then the branch
    side = prod(min(s, v.tile_pixels) for s in (work.width, work.height))
    pixels = 3 * 4 * v.window_frames
    picture = work.width * work.height
    window = tiles * side * pixels + picture * pixels
    chunk = 3 * 4 * v.clip_frames * picture
    carried = pixels * picture - chunk
    return round(max(batch * tile_tokens * token + tiles * side * pixels, window + 2 * chunk) + carried)


def sound_bytes(sizes: Sizes, work: Work) -> int:
    """The whole wave in the audio decoder."""
    return work.num_samples * sizes.audio_sample_bytes
