"""Seconds of a stage from rates: what a block computes, what its weights need to cross, and both beside each other.

S rows, D hidden, I attention width, F feed-forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.sizes import Sizes, VideoSizes
from talkies.h3.config import DiTConfig
from talkies.placement.stream.layerwise import LayerwiseConfig, streamed_positions

VIT_SHARE = 0.45  # of the products' rate: tokens come in small tiles and the stream is float32
TEXT_SHARE = 0.6  # transformers' eager layers


def block_seconds(
    config: DiTConfig,
    rows: int,
    hardware: Hardware,
    *,
    of: int | None = None,
    fp8: bool = False,
    fp8_attention: bool = False,
) -> float:
    """One block alone, its weights there, over ``rows`` of ``of`` (all, if ``None``). One attention document:
    co-batched requests attend less."""
    d, i, f = config.hidden_size, config.inner_dim, config.ffn_dim
    products = 2 * rows * (4 * i * d + 3 * f * d)
    attention = 4 * rows * (of or rows) * i
    elementwise = elementwise_bytes(config, rows, fp8=fp8, fp8_attention=fp8_attention)
    rate = hardware.fp8_flops if fp8 and hardware.fp8_flops else hardware.matmul_flops
    attention_rate = hardware.attention_flops
    if fp8_attention and hardware.fp8_attention_flops:
        attention_rate = hardware.fp8_attention_flops
    return products / rate + attention / attention_rate + elementwise / hardware.elementwise_bytes_per_s


def elementwise_bytes(config: DiTConfig, rows: int, *, fp8: bool = False, fp8_attention: bool = False) -> int:
    """What the kernels between a block's products read and write."""
    d, i, f = config.hidden_size, config.inner_dim, config.ffn_dim
    # rms_modulate 2D, gate_residual_norm 4D, swiglu 3F, gate_residual 3D: two bytes each. With fp8 some of it is
    # written in one byte, which an H200 does no faster (norms 1.23 for 1.22 ms, swiglu 1.17 for 1.24).
    row = 2 * (9 * d + 3 * f)
    if fp8:
        row += 3 * i  # quantize_rows of attention's output; norms and swiglu quantise what they write
    return rows * row + operand_bytes(config, rows, fp8_attention=fp8_attention)


def operand_bytes(config: DiTConfig, rows: int, *, fp8_attention: bool) -> int:
    """What is read and written between the projection and the attention kernel."""
    # qk_norm_rope reads and writes q and k. In e4m3 qkv_scales reads v (and few keys), norm_rope_quantize reads q, k, v
    # and writes them in one byte.
    return rows * config.inner_dim * (2 + 6 + 3 if fp8_attention else 8)


def pass_seconds(compute_s: Sequence[float], transfer_s: Sequence[float], slots: int) -> float:
    """One steady pass over modules in a ring. ``transfer_s`` is 0 for one that is resident.

    The two engines as they run: a transfer starts when the one before it is done and the module that used its slot
    before has computed; a module starts when the one before it and its own transfer are done. Three passes are
    simulated and the last one counts, since the first transfers of a pass run during the pass before.
    """
    streamed = [j for j, seconds in enumerate(transfer_s) if seconds > 0]
    if len(streamed) <= slots:
        return sum(compute_s)
    passes = 3
    computed: list[float] = []  # end of each streamed module's work, in order
    clock, bus, ends = 0.0, 0.0, [0.0]
    for _ in range(passes):
        for j, seconds in enumerate(compute_s):
            if transfer_s[j] > 0:
                number = len(computed)
                slot_free = computed[number - slots] if number >= slots else 0.0
                bus = max(bus, slot_free) + transfer_s[j]
                clock = max(clock, bus)
            clock += seconds
            if transfer_s[j] > 0:
                computed.append(clock)
        ends.append(clock)
    return ends[-1] - ends[-2]


@cache
def forward_seconds(
    sizes: Sizes,
    rows: int,
    hardware: Hardware,
    layerwise: LayerwiseConfig | None,
    block_bytes: tuple[int, ...],
    *,
    fp8: bool = False,
    fp8_attention: bool = False,
) -> float:
    """All blocks; what surrounds them is under a hundredth of it. What crosses between devices is not in it."""
    here = sizes.rows_here(rows)
    block_s = block_seconds(sizes.dit, here, hardware, of=rows, fp8=fp8, fp8_attention=fp8_attention)
    n = sizes.dit.num_layers
    positions = () if layerwise is None else streamed_positions(n, layerwise)
    transfers = [0.0] * n
    for p in positions:
        transfers[p] = block_bytes[p] / hardware.h2d_bytes_per_s
    return pass_seconds([block_s] * n, transfers, layerwise.slots if layerwise else n)


def encode_seconds(sizes: Sizes, demand: Demand, hardware: Hardware, host_bytes: int, *, fp8: bool = False) -> float:
    """The text and the pictures it sees; what is not on the device crosses while it computes."""
    t = sizes.text
    flops = 2 * demand.text_tokens * t.layer_parameters * t.num_layers
    rate = hardware.fp8_flops if fp8 and hardware.fp8_flops else hardware.matmul_flops
    # Each patch sees those of its own frame pair; a condition's pairs are equally large.
    vision = sum(
        c.vision_patches * (2 * t.vision_layer_parameters + 4 * c.patches_per_pair * t.vision_width)
        for c in demand.conditions
    )
    vision_s = vision * t.num_vision_layers / hardware.matmul_flops
    return max(flops / (TEXT_SHARE * rate) + vision_s / TEXT_SHARE, host_bytes / hardware.h2d_bytes_per_s)


def vit_flops(v: VideoSizes, demand: Demand) -> float:
    """Of the products and the attention of all tiles of a clip."""
    g = demand.target
    tokens = v.tile_tokens(g.width, g.height)
    tiles = v.tiles(g.width, g.height) * v.windows(g.latent_frames)
    return tiles * tokens * v.num_layers * (2 * v.layer_parameters + 4 * tokens * v.width)


def decode_seconds(sizes: Sizes, demand: Demand, hardware: Hardware, weights_bytes: int, *, streamed: bool) -> float:
    """``weights_bytes`` cross once for the clip, or once for each batch of tiles when they are streamed."""
    v, g = sizes.video, demand.target
    compute_s = vit_flops(v, demand) / (VIT_SHARE * hardware.matmul_flops)
    if not streamed:
        return compute_s + weights_bytes / hardware.h2d_bytes_per_s
    per_batch = max(1, v.batch_tokens // v.tile_tokens(g.width, g.height))
    batches = v.windows(g.latent_frames) * -(-v.tiles(g.width, g.height) // per_batch)
    return max(compute_s, batches * weights_bytes / hardware.h2d_bytes_per_s)
