"""A plan's seconds beside measured ones: one H200, torch 2.11, released sizes with random weights.

Copied from bench/results/streaming-nvidia-h200.json (commit e6de625): ``s_<rows>_r<resident>`` with attention fa3,
``fp8_s_..`` with fp8 products and fa3-fp8.
"""

from __future__ import annotations

import pytest

from talkies.capacity import seconds as timing
from talkies.capacity import weight_bytes as wb
from talkies.capacity.hardware import H200
from talkies.capacity.plan import chunk_cost
from talkies.capacity.sizes import Sizes
from talkies.model.chunking import Chunking
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.stream.layerwise import LayerwiseConfig

# rows: {resident blocks: (bf16, fp8)} in seconds
FORWARDS = {
    58_758: {0: (10.6775, 7.4063), 40: (10.6828, 7.36548), 50: (10.6471, 7.37521)},
    20_424: {
        0: (2.08739, 1.35879),
        10: (2.08259, 1.35496),
        20: (2.07986, 1.34663),
        30: (2.07346, 1.35437),
        40: (2.07565, 1.33895),
        50: (2.05627, 1.32785),
    },
    6_105: {
        0: (0.698884, 0.35269),
        10: (0.560213, 0.30015),
        20: (0.457196, 0.277208),
        30: (0.451149, 0.273542),
        40: (0.449542, 0.27113),
        50: (0.434923, 0.263871),
    },
}
TOLERANCE = {58_758: 0.08, 20_424: 0.08, 6_105: 0.15}
# No block resident, 58,758 rows, whole and in chunks, of one run (commit 219adc6): (bf16, fp8).
WHOLE = (10.8075, 7.50759)
CHUNKED = {
    Chunking(mlp_rows=8192, head_groups=2): (10.934, 7.54942),
    Chunking(mlp_rows=8192, head_groups=4): (10.9058, 7.53864),
}
PRECISIONS = (("bf16", QuantizeConfig()), ("fp8", QuantizeConfig(method="fp8")))


def planned(rows: int, resident: int, quantize: QuantizeConfig) -> float:
    fp8 = quantize.method == "fp8"
    blocks = wb.block_bytes(Sizes().dit, quantize, 2)
    layerwise = LayerwiseConfig(resident=resident)
    return timing.forward_seconds(Sizes(), rows, H200, layerwise, blocks, fp8=fp8, fp8_attention=fp8)


@pytest.mark.parametrize(
    ("rows", "resident", "precision"),
    [(rows, resident, i) for rows, points in FORWARDS.items() for resident in points for i in range(2)],
)
def test_every_measured_forward_is_planned(rows, resident, precision):
    measured = FORWARDS[rows][resident][precision]
    seconds = planned(rows, resident, PRECISIONS[precision][1])
    assert seconds == pytest.approx(measured, rel=TOLERANCE[rows])


@pytest.mark.parametrize("chunking", CHUNKED)
@pytest.mark.parametrize("precision", range(2))
def test_what_chunks_cost_is_planned(chunking, precision):
    measured = CHUNKED[chunking][precision] / WHOLE[precision]
    assert chunk_cost(chunking) == pytest.approx(measured, rel=0.01)


# dit_forward-nvidia-h200.json (commit 688f0ac): ``<precision>_block_<kernel>_ms``, summed.
BLOCKS = {"bf16": (62.1617, 148.389, 3.53), "fp8": (30.0759, 113.05, 5.41)}
# The kernels that made the operands of e4m3 attention then moved 23 bytes a channel: qk_norm_rope 8, head_stats 6,
# quantize_heads 9. Those of now move 11.
THEN = 23 - 11


@pytest.mark.parametrize("precision", range(2))
def test_a_block_takes_its_time_where_it_was_measured(precision):
    """Products, attention and what is between them, in ms at 58,758 rows."""
    name, quantize = PRECISIONS[precision]
    fp8, config = quantize.method == "fp8", Sizes().dit
    d, i, f = config.hidden_size, config.inner_dim, config.ffn_dim
    products = 2 * 58_758 * (4 * i * d + 3 * f * d) / (H200.fp8_flops if fp8 else H200.matmul_flops)
    attention = 4 * 58_758**2 * i / (H200.fp8_attention_flops if fp8 else H200.attention_flops)
    moved = timing.elementwise_bytes(config, 58_758, fp8=fp8, fp8_attention=fp8) + fp8 * THEN * i * 58_758
    between = moved / H200.elementwise_bytes_per_s
    assert [1e3 * s for s in (products, attention, between)] == pytest.approx(BLOCKS[name], rel=0.02)
