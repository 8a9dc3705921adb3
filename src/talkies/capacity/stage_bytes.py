"""Bytes that each stage of a request holds at its highest point besides weights, from sizes and a demand. No torch.

The terms are the allocations of the code, one by one; the names beside them are the lines that make them. The planner
(``plan.py``) and the admission of jobs (``admission.py``) both add them up. D hidden, e bytes of the block dtype.
"""

from __future__ import annotations

from talkies.capacity.demand import ConditionDemand, Demand
from talkies.capacity.forward_bytes import forward_rates
from talkies.capacity.sizes import Sizes, VideoSizes
from talkies.model.chunking import Chunking

WORKSPACE = 96 << 20  # cuBLAS (32 MiB on Hopper) and what other libraries keep in the allocator


def forward_bytes(
    sizes: Sizes, rows: int, chunking: Chunking, *, fp8: bool = False, fp8_attention: bool = False
) -> int:
    """The most that a forward of ``rows`` holds on one device, with the kernels of a GPU."""
    rates = forward_rates(sizes.dit, sizes.block_bytes, chunking, mesh=sizes.mesh, fp8=fp8, fp8_attention=fp8_attention)
    return round(rates.bytes(sizes.rows_here(rows)))


def step_modulation_bytes(sizes: Sizes, demand: Demand) -> int:
    """Of one forward: six vectors a block for each timestep and modality, two at the output for each timestep. Text and
    video share a timestep, sound has its own, and conditions of either are held at another."""
    c = sizes.dit
    timesteps = demand.num_timesteps
    return ((timesteps + 1) * c.num_layers * 6 + timesteps * 2) * c.hidden_size * sizes.block_bytes


def held_bytes(sizes: Sizes, demand: Demand, *, whole_modulation: int) -> int:
    """Of one request between its steps: rows and anchors, rotary tables, text, the modulation of two steps or, up to
    ``whole_modulation``, of all, and what its step cache keeps."""
    c, e = sizes.dit, sizes.block_bytes
    one_set = 4 * (demand.video_rows * c.video_row_dim + demand.audio_rows * c.audio_in_channels)
    rows = (4 + demand.cache.kept_rows) * one_set
    rows += demand.cache.kept_streams * sizes.rows_here(demand.rows) * c.hidden_size * e
    rotary = demand.rows * 2 * c.num_angles * e
    text = demand.text_tokens * (c.hidden_size + c.text_dim) * e
    step = step_modulation_bytes(sizes, demand)
    return rows + rotary + text + max(2 * step, min(whole_modulation, demand.num_forwards * step))


def table_bytes(sizes: Sizes, demand: Demand) -> int:
    """Building a schedule's modulation: the table, and one block's AdaLN matrix at a time (two while they change)."""
    c, e = sizes.dit, sizes.block_bytes
    table = demand.num_forwards * step_modulation_bytes(sizes, demand)
    return table + 2 * (c.time_embed_dim + 1) * c.adaln_out_features * e


def layer_token_bytes(width: int, inner: int, size: int) -> int:
    """What a token holds in a pre-norm layer of transformers, ``size`` bytes a value: about ten widths, three inner."""
    return size * (10 * width + 3 * inner)


def text_bytes(sizes: Sizes, demand: Demand, *, fp8: bool = False) -> int:
    """Text and the pictures it sees, which the vision tower takes all at once; with ``fp8`` the e4m3 copy of the widest
    product's input besides."""
    t, e = sizes.text, sizes.block_bytes
    token = layer_token_bytes(t.width, t.inner, e) + e * sizes.dit.hidden_size + (t.inner + 4 if fp8 else 0)
    patch = layer_token_bytes(t.vision_width, t.vision_inner, e) + 4 * t.vision_patch_values
    return demand.text_tokens * token + demand.vision_patches * patch


def condition_bytes(sizes: Sizes, condition: ConditionDemand) -> int:
    """One picture, video or sound in its VAE's encoder: pixels in float32 and one clip of one tile, or the wave."""
    v = sizes.video
    frames = min(condition.num_frames, v.clip_frames)
    tile = min(condition.height, v.tile_pixels) * min(condition.width, v.tile_pixels)
    pixels = 3 * 3 * 4 * condition.pixels + frames * tile * v.encoder_pixel_bytes
    return max(pixels, condition.num_samples * sizes.audio_encode_sample_bytes)


def window_bytes(v: VideoSizes, demand: Demand) -> int:
    """Of one decoded window of the whole picture, in float32."""
    return 3 * 4 * v.window_frames * demand.target.width * demand.target.height


def decode_bytes(sizes: Sizes, demand: Demand) -> int:
    """One batch of tiles in the ViT, all pixel tiles of a window, the stitched window and its chunks."""
    v, width, height = sizes.video, demand.target.width, demand.target.height
    tile_tokens, tiles = v.tile_tokens(width, height), v.tiles(width, height)
    batch = min(tiles, max(1, v.batch_tokens // tile_tokens))
    inner, w, e = v.width * v.ffn_mult, v.width, v.linear_bytes
    attention = e * 7 * w + 4 * 2 * w  # qkv, rotated q and k with their float32 norms, output
    feed_forward = e * (3 * inner + w)
    token = 4 * 3 * w + max(attention, feed_forward)  # stream, its sum, the norm; then the branch
    side = min(width, v.tile_pixels) * min(height, v.tile_pixels)
    pixel_tiles = tiles * side * 3 * 4 * v.window_frames
    window = window_bytes(v, demand)
    chunk = 3 * 4 * v.clip_frames * width * height
    carried = window - chunk
    return max(batch * tile_tokens * token + pixel_tiles, pixel_tiles + window + 2 * chunk) + carried


def sound_bytes(sizes: Sizes, demand: Demand) -> int:
    """The whole wave in the audio decoder."""
    return demand.target.num_samples * sizes.audio_sample_bytes
