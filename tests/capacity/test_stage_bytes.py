"""Formulas against what the code allocates, and against numbers computed by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from talkies.attention import registry
from talkies.attention.flash3 import Flash3, Flash3Fp8
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.capacity import refusal
from talkies.capacity import stage_bytes as fp
from talkies.capacity import weight_bytes as wb
from talkies.capacity.demand import Demand
from talkies.capacity.sizes import Sizes, TextSizes, VideoSizes
from talkies.h3.config import DiTConfig
from talkies.h3.geometry import Limits, geometry_of
from talkies.kernels.select import REFERENCE
from talkies.model.chunking import Chunking
from talkies.model.weights import build_dit
from talkies.placement.quantize import QuantizeConfig, placer
from talkies.placement.stream.flat import FlatLayout, parameters_of
from talkies.placement.stream.layerwise import LayerwiseConfig
from tests.placement.alloc_meter import fused_ops, meter

GIB = 2**30
CPU = torch.device("cpu")
FP8 = QuantizeConfig(method="fp8")
# The 8.7 s clip of the published measurements: 58,758 rows.
FULL = Demand(target=geometry_of(1152, 832, 209, Limits()), prompt_tokens=30, num_forwards=49)


@pytest.mark.parametrize("quantize", [QuantizeConfig(), FP8, QuantizeConfig(method="fp8", exclude=("blocks.1.*",))])
def test_bytes_of_a_block_are_those_of_its_buffer(quantize):
    source = RandomDiT(fw.TINY, CPU, torch.bfloat16)
    place = placer(quantize, fw.TINY, REFERENCE, CPU)
    dit = build_dit(source, attend=registry.create("sdpa"), adaln=False, place=place)
    measured = tuple(FlatLayout.of(parameters_of(block)).num_bytes for block in dit.blocks)
    assert wb.block_bytes(fw.TINY, quantize, 2) == measured
    refiner = tuple(FlatLayout.of(parameters_of(block)).num_bytes for block in dit.token_refiner.blocks)
    assert wb.refiner_bytes(fw.TINY, 2) == refiner
    inside = ("blocks.", "token_refiner.blocks.")
    top = sum(p.nbytes for name, p in dit.named_parameters() if not name.startswith(inside))
    assert wb.top_bytes(fw.TINY, 2) == top


def test_the_released_sizes_by_hand():
    # 4 * 7168 * 5376 + 3 * 14336 * 5376 + 2 * 5376 + 2 * 128 parameters of two bytes; the padding is under 1 KiB.
    body = 4 * 7168 * 5376 + 3 * 14336 * 5376 + 2 * 5376 + 2 * 128
    (block,) = set(wb.block_bytes(DiTConfig(), QuantizeConfig(), 2))
    assert 0 <= block - 2 * body < 1024
    assert block == pytest.approx(771e6, rel=2e-3)  # 14 ms at 55 GB/s
    (fp8,) = set(wb.block_bytes(DiTConfig(), FP8, 2))
    assert fp8 == pytest.approx(block / 2, rel=1e-3)
    text = TextSizes()
    # q and o of 64 heads, k and v of 8, three products of 25,600, two norms, two head norms.
    assert text.layer_parameters == 2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25_600 + 2 * 5120 + 2 * 128
    assert VideoSizes().num_layers * VideoSizes().layer_parameters == pytest.approx(2.42e9, rel=1e-2)


# Of 27 vision layers two are there, in bf16: q, k, v, output, two products of 4,304, biases and two norms.
VISION_LAYER = 4 * 1152**2 + 2 * 1152 * 4304 + 4 * 1152 + 4304 + 1152 + 4 * 1152
VISION_AWAY = 2 * 25 * VISION_LAYER


@pytest.mark.parametrize("exclude", [(), ("text_encoder.layers.1.*", "text_encoder.layers.2.mlp.up_proj")])
def test_the_text_encoders_layers_in_e4m3_by_hand(exclude):
    text = TextSizes(num_layers=4)
    quantize = QuantizeConfig(method="fp8", exclude=exclude)
    linears = 2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25_600
    scales = 4 * (8192 + 2 * 1024 + 5120 + 2 * 25_600 + 5120)
    norms = 2 * (2 * 5120 + 2 * 128)
    fp8 = linears + scales + norms
    some = fp8 + 5120 * 25_600 - 4 * 25_600
    wanted = (fp8,) * 4 if not exclude else (fp8, 2 * linears + norms, some, fp8)
    assert wb.text_layer_bytes(text, quantize, 2) == wanted
    assert wb.text_layer_bytes(text, QuantizeConfig(), 2) == (2 * linears + norms,) * 4
    rest = 2 * text.rest_parameters
    got = wb.text_weights(Sizes(text=text), "streamed", 2, quantize)
    assert got == wb.Weights(0, 2 * max(wanted) + rest - VISION_AWAY, sum(wanted) + rest)


def test_streamed_weights_by_hand():
    sizes = Sizes(dit=DiTConfig(num_layers=6))
    (block,) = set(wb.block_bytes(sizes.dit, QuantizeConfig(), 2))
    refiner, top = sum(wb.refiner_bytes(sizes.dit, 2)), wb.top_bytes(sizes.dit, 2)
    got = wb.dit_weights(sizes, QuantizeConfig(), LayerwiseConfig(resident=2))
    assert got == wb.Weights(top + 2 * block, 2 * block, 4 * block + refiner)
    assert wb.dit_weights(sizes, QuantizeConfig(), None) == wb.Weights(top + 6 * block + refiner, 0, 0)
    layer = sizes.text.layer_parameters * 2
    rest = sizes.text.rest_parameters * 2
    assert wb.text_weights(sizes, "streamed") == wb.Weights(0, 2 * layer + rest - VISION_AWAY, 50 * layer + rest)
    assert wb.text_weights(sizes, "evicted") == wb.Weights(0, 50 * layer + rest, 50 * layer + rest)
    assert wb.text_weights(sizes, "resident") == wb.Weights(50 * layer + rest, 0, 0)
    few = Sizes(text=TextSizes(num_vision_layers=2))  # they sit in their slots
    assert wb.text_weights(few, "streamed").visiting == 2 * layer + rest


@pytest.mark.parametrize(
    ("chunking", "expected"),
    [
        # 2 x the stream, h, up of 2F and swiglu's F, all rows: 2 * (4 * 5376 + 3 * 14336) bytes a row.
        (Chunking(), 58_758 * 2 * (4 * 5376 + 3 * 14_336)),
        # Attention is the larger one then: 2 x the stream, h, q k v and the output, and 56 float32 of the kernel.
        (Chunking(mlp_rows=8192), 58_758 * (2 * (3 * 5376 + 4 * 7168) + 4 * 56)),
        # Half of q, k, v, all of the output, half of the kernel's.
        (
            Chunking(mlp_rows=8192, head_groups=2),
            58_758 * (2 * (3 * 5376 + 3 * 3584 + 7168 + 3584) + 4 * 28),
        ),
    ],
)
def test_activations_of_the_released_model_by_hand(chunking, expected):
    assert fp.forward_bytes(Sizes(), 58_758, chunking) == expected


# Wide enough for fused ops to matter, long enough for weights not to.
WIDE = DiTConfig(
    hidden_size=48,
    num_layers=2,
    num_refiner_layers=1,
    num_attention_heads=4,
    attention_head_dim=16,
    ffn_dim=128,
    in_channels=4,
    audio_in_channels=8,
    text_dim=32,
    freq_dim=16,
    time_embed_hidden_dim=32,
    time_embed_dim=24,
    rope_freq_dim=2,
)
SHAPE = fw.Shape(text=9, audio_latents=20, frames=12, height=24, width=28)


each_chunking = pytest.mark.parametrize(
    "chunking",
    [Chunking(), Chunking(mlp_rows=256), Chunking(mlp_rows=256, head_groups=2), Chunking(mlp_rows=128, head_groups=4)],
)


class Kernel:
    """What an attention kernel allocates: an output and its log-sum-exp."""

    def __call__(self, q, k, v, documents):
        return self.flash_attn_func(q[None], k[None], v[None])[0]

    def flash_attn_func(self, q, k, v, **descale):
        out = torch.empty(q.shape)
        torch.empty(q.shape[:3])
        return out.zero_()

    flash_attn_varlen_func = None


def _allocated(chunking, quantize, attend_of, exact=None):
    """The highest point of a forward and its rows; ``attend_of`` makes the backend of the ops."""
    source = RandomDiT(WIDE, CPU, torch.float32)
    inputs = fw.make_inputs(source, [SHAPE], CPU, torch.float32)
    with meter() as seen:
        ops = fused_ops(seen)
        place = placer(quantize, WIDE, ops, CPU)
        dit = build_dit(source, attend=attend_of(ops), ops=ops, adaln=False, place=place)
        dit.use_chunking(chunking)
        step = fw.Step(dit, inputs)
        with torch.inference_mode():
            x = step.embed()
            seen.peak = seen.live
            outside = seen.live - x.nbytes
            dit.run_blocks(x, step.view if exact is None else step.view.with_exact([exact]), inputs.modulation)
    return seen.peak - outside, inputs.layout.num_rows


@pytest.mark.parametrize("fp8", [False, True])
@each_chunking
def test_activations_are_what_the_code_allocates(chunking, fp8):
    """Within 8 %: what the plan promises."""
    measured, rows = _allocated(chunking, FP8 if fp8 else QuantizeConfig(), lambda ops: Kernel())
    predicted = fp.forward_bytes(Sizes(dit=WIDE, block_bytes=4), rows, chunking, fp8=fp8)
    assert predicted == pytest.approx(measured, rel=0.08)


@each_chunking
@pytest.mark.parametrize("exact", [None, (0, 40)], ids=["none exact", "some exact"])
def test_activations_of_e4m3_attention_are_what_the_code_allocates(chunking, exact):
    """By both of its paths: from the projection, and around rows that are exact."""
    measured, rows = _allocated(chunking, FP8, lambda ops: Flash3Fp8(Flash3(Kernel()), ops), exact)
    sizes = Sizes(dit=WIDE, block_bytes=4)
    assert fp.forward_bytes(sizes, rows, chunking, fp8=True, fp8_attention=True) == pytest.approx(measured, rel=0.08)


def test_decode_tiles_of_a_full_canvas_by_hand():
    v = VideoSizes()
    assert v.tiles(1344, 768) == 7 * 4
    assert v.tile_tokens(1344, 768) == 7 * 16 * 16 + 5
    assert v.windows(57) == 11
    assert v.windows(62) == 12
    assert v.tiles(112, 64) == 1


def test_the_full_clip_has_its_published_rows():
    assert (FULL.rows, FULL.video_rows, FULL.audio_rows, FULL.text_tokens) == (58_758, 58_032, 696, 30)
    assert (FULL.target.latent_frames, FULL.target.num_samples) == (62, 348 * 800)


def test_larger_requests_need_more():
    sizes = Sizes()
    small = refusal.shorter(FULL, 124, 124 / 209)
    held_bytes = partial(fp.held_bytes, whole_modulation=0)
    for formula in (held_bytes, fp.decode_bytes, fp.sound_bytes):
        assert formula(sizes, small) <= formula(sizes, FULL)
    assert small.rows < FULL.rows
