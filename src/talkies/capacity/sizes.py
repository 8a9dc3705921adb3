"""The sizes of a checkpoint's components, as its configs and the headers of its files state them. No torch.

:func:`talkies.engine.load.planning.sizes_of` reads them; the defaults are the release's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from talkies.h3.config import DiTConfig
from talkies.h3.geometry import tiles_along
from talkies.placement.ranks.mesh import ONE, Mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSizes:
    """The text encoder; the defaults are the released one's (Qwen3-VL 32B, 50 of its layers)."""

    width: int = 5120
    inner: int = 25_600
    num_layers: int = 50
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    vision_parameters: int = 576_000_000
    vision_width: int = 1152
    vision_inner: int = 4304
    vision_patch_values: int = 3 * 2 * 16 * 16  # of one patch row
    num_vision_layers: int = 27
    vision_layer_parameters: int = 15_239_504  # of vision_parameters
    shards: int = 1  # devices that share it: products are cut, embeddings are whole on each

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of a layer's products: queries, keys, values, output, gate, up, down."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return (
            (queries, self.width),
            (keys, self.width),
            (keys, self.width),
            (self.width, queries),
            (self.inner, self.width),
            (self.inner, self.width),
            (self.width, self.inner),
        )

    @property
    def norm_parameters(self) -> int:
        return 2 * self.width + 2 * self.head_dim

    @property
    def layer_parameters(self) -> int:
        return sum(map(prod, self.linear_shapes)) + self.norm_parameters

    @property
    def rest_parameters(self) -> int:
        """Of all but the decoder layers."""
        away = self.num_vision_layers * (self.vision_layer_parameters - self._vision_layer_here)
        return self.vocabulary * self.width + self.vision_parameters - away

    def visiting_rest_parameters(self, slots: int) -> int:
        """The same while the encoder streams: of more vision layers than slots only those in the slots are there."""
        return self.rest_parameters - max(0, self.num_vision_layers - slots) * self._vision_layer_here

    @property
    def _vision_layer_here(self) -> int:
        return -(-self.vision_layer_parameters // self.shards)


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
    encoder_pixel_bytes: int = 4 * 128 * 12  # of one pixel of one frame of a tile in the encoder

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
    audio_encode_sample_bytes: int = 4 * 2 * 64 * 8 + 80  # and in its encoder
    block_bytes: int = 2
    num_partitions: int = 1
    mesh: Mesh = ONE  # devices that share each forward; ``dit`` is one's share of its channels

    def rows_here(self, rows: int) -> int:
        """Of a forward, on the device that has most of them."""
        return -(-rows // self.mesh.num_shares)
