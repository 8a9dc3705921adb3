"""Plans against hand-computed cases: a pipeline of two engines, budgets that decide, refusals that help."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from talkies.capacity import cards, hardware, planner, refusal, stage_bytes
from talkies.capacity import plan as plan_module
from talkies.capacity import seconds as timing
from talkies.capacity import weight_bytes as wb
from talkies.capacity.hardware import GIB, H200
from talkies.capacity.plan import Wishes
from talkies.capacity.planner import make_plan
from talkies.capacity.price import Pricing
from talkies.capacity.sizes import Sizes
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.model.chunking import Chunking
from talkies.placement.components import Residences
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.stream.layerwise import LayerwiseConfig
from tests.capacity.test_stage_bytes import FULL

SIZES = Sizes()
FP8 = QuantizeConfig(method="fp8")


@pytest.mark.parametrize(
    ("compute", "transfer", "slots", "expected"),
    [
        ([3.0] * 6, [1.0] * 6, 2, 18.0),  # transfers hide
        ([1.0] * 6, [3.0] * 6, 2, 18.0),  # transfers decide
        ([1.0] * 6, [0.0] * 6, 2, 6.0),  # nothing moves
        ([1.0] * 6, [0.0, 3.0, 0.0, 3.0, 0.0, 3.0], 2, 9.0),  # three transfers of three
        ([2.0] * 6, [0.0, 3.0, 0.0, 3.0, 0.0, 3.0], 2, 12.0),  # a pair computes for four: they hide
        ([1.0] * 4, [3.0] * 4, 1, 16.0),  # one slot: one after the other
        ([1.0] * 4, [0.0, 9.0, 0.0, 9.0], 2, 4.0),  # two streamed ones sit in two slots
    ],
)
def test_a_pass_by_hand(compute, transfer, slots, expected):
    assert timing.pass_seconds(compute, transfer, slots) == pytest.approx(expected)


def test_even_spacing_beats_a_block_of_residents():
    compute, streamed = [1.0] * 12, 6
    even = [0.0, 1.9] * 6
    front = [0.0] * 6 + [1.9] * 6
    assert timing.pass_seconds(compute, even, 2) == pytest.approx(12.0)
    assert timing.pass_seconds(compute, front, 2) > 14.0
    assert sum(t > 0 for t in even) == sum(t > 0 for t in front) == streamed


def test_a_block_by_hand():
    config = DiTConfig(hidden_size=8, num_attention_heads=2, attention_head_dim=16, ffn_dim=12, rope_freq_dim=2)
    slow = cards.parse("1GiB,1GB/s,1TFLOPs,attention=2TFLOPs")
    # 2 * 10 * (4 * 32 * 8 + 3 * 12 * 8) products and 4 * 100 * 32 of attention.
    flops = 26_240 / 1e12 + 12_800 / 2e12
    moved = 2 * 10 * (9 * 8 + 4 * 32 + 3 * 12) / slow.elementwise_bytes_per_s
    assert timing.block_seconds(config, 10, slow) == pytest.approx(flops + moved)
    # Operands of e4m3 attention are made by kernels that move 11 bytes an attention channel, those of bf16 by one that
    # moves 8; its output is quantised by 3 more.
    fast = replace(slow, fp8_flops=4e12, fp8_attention_flops=8e12)
    moved += 10 * (11 - 8 + 3) * 32 / slow.elementwise_bytes_per_s
    seconds = timing.block_seconds(config, 10, fast, fp8=True, fp8_attention=True)
    assert seconds == pytest.approx(26_240 / 4e12 + 12_800 / 8e12 + moved)


def test_short_requests_are_bound_by_the_bus_and_residents_help():
    block = wb.block_bytes(SIZES.dit, QuantizeConfig(), 2)
    seconds = [
        timing.forward_seconds(SIZES, 6_000, H200, LayerwiseConfig(resident=r), block) for r in (0, 10, 20, 30, 40, 50)
    ]
    bus = block[0] / H200.h2d_bytes_per_s
    assert seconds[0] == pytest.approx(50 * bus, rel=1e-6)
    assert seconds[1] == pytest.approx(40 * bus, rel=0.02)
    assert all(a >= b * 0.999 for a, b in pairwise(seconds))
    assert seconds[-1] == pytest.approx(50 * timing.block_seconds(SIZES.dit, 6_000, H200))


def test_a_large_card_keeps_everything():
    plan = make_plan(SIZES, FULL, H200)
    assert plan.residences == Residences()
    assert plan.host_bytes == 0
    assert plan.chunking == Chunking()


@pytest.mark.parametrize("budget", [24, 12, 8])
@pytest.mark.parametrize("quantize", [QuantizeConfig(), FP8])
def test_a_small_budget_costs_no_speed_at_full_length(budget, quantize):
    wishes = Wishes(quantize=quantize)
    whole = make_plan(SIZES, FULL, H200, wishes)
    plan = make_plan(SIZES, FULL, H200.with_budgets(budget * GIB, None), wishes)
    assert plan_module.needed(plan.peak_bytes) <= budget * GIB
    assert plan.forward_s <= 1.02 * whole.forward_s
    assert plan.residences.text == "streamed"
    assert plan.host_bytes + plan_module.HOST_SPARE <= H200.ram_bytes
    assert plan.resident_blocks < 50


def test_of_equally_fast_plans_the_one_with_least_in_host_memory_wins():
    card = replace(H200, vram_bytes=80 * GIB, ram_bytes=256 * GIB)
    plan = make_plan(SIZES, FULL, card)
    fitting = [p for p in Pricing(SIZES, FULL, card, Wishes()).all() if p.fits(card)]
    as_fast = [p for p in fitting if p.total_s <= plan.total_s * planner.SAME_SPEED]
    assert plan.host_bytes == min(p.host_bytes for p in as_fast)
    assert plan.host_bytes < 0.7 * max(p.host_bytes for p in as_fast)  # there was something to choose


def test_the_dit_stage_of_the_smallest_plan():
    least = refusal.smallest(SIZES, FULL, H200, Wishes())
    (denoise,) = (s for s in least.stages if s.name == "denoise")
    assert denoise.peak_bytes <= 6.5 * GIB
    (denoise,) = (s for s in refusal.smallest(SIZES, FULL, H200, Wishes(quantize=FP8)).stages if s.name == "denoise")
    assert denoise.peak_bytes <= 5.5 * GIB


def test_a_budget_that_is_too_small_names_what_would_do():
    with pytest.raises(ConfigError, match="no shorter clip fits"):  # the text encoder alone is larger
        make_plan(SIZES, FULL, H200.with_budgets(3 * GIB, None))
    least = plan_module.needed(refusal.smallest(SIZES, FULL, H200, Wishes()).peak_bytes)
    with pytest.raises(ConfigError, match="vram budget of at least") as caught:
        make_plan(SIZES, FULL, H200.with_budgets(round(0.97 * least), None))
    smallest = int(caught.value.hint.split("MiB")[0].split("=")[-1])
    assert "frames" in caught.value.hint
    make_plan(SIZES, FULL, H200.with_budgets(smallest * 2**20, None))
    with pytest.raises(ConfigError):
        make_plan(SIZES, FULL, H200.with_budgets(round(smallest * 2**20 * 0.98), None))


def test_little_ram_is_not_taken_for_little_vram():
    """What streams waits in host memory: both ways out are named, and both work."""
    poor = H200.with_budgets(4 * GIB, 64 * GIB)
    with pytest.raises(ConfigError, match=r"with 64\.00 GiB of host memory, 4\.00 GiB are given") as caught:
        make_plan(SIZES, FULL, poor)
    vram, less, ram = (int(n) * 2**20 for n in re.findall(r"(\d+)MiB", caught.value.hint))
    assert less < vram
    make_plan(SIZES, FULL, H200.with_budgets(vram, 64 * GIB))
    make_plan(SIZES, FULL, H200.with_budgets(less, ram))
    with pytest.raises(ConfigError, match="host memory") as caught:
        make_plan(SIZES, FULL, H200.with_budgets(less, ram - 2**30))
    assert caught.value.param == "ram_budget"


def test_budgets_of_a_described_machine():
    machine = cards.parse("24GiB,25GB/s,330TFLOPs")
    assert machine.with_budgets(8 * GIB, 96 * GIB).vram_bytes == 8 * GIB
    assert machine.with_budgets(8 * GIB, 96 * GIB).ram_bytes == 96 * GIB  # nobody said how much it has
    with pytest.raises(ConfigError, match=r"vram_budget=32\.00 GiB, but 24GiB,25GB/s,330TFLOPs has 24\.00 GiB"):
        machine.with_budgets(32 * GIB, None)


def test_the_nearest_size_fits_and_the_next_one_does_not():
    least = plan_module.needed(refusal.smallest(SIZES, FULL, H200, Wishes()).peak_bytes)
    tight = H200.with_budgets(round(least * 0.97), None)
    near = refusal.nearest_demand(SIZES, FULL, tight, Wishes())
    assert near is not None
    assert near.target.num_frames % 17 == FULL.target.num_frames % 17
    make_plan(SIZES, near, tight)
    longer = refusal.shorter(FULL, near.target.num_frames + 17, (near.target.num_frames + 17) / FULL.target.num_frames)
    if longer.target.num_frames < FULL.target.num_frames:
        with pytest.raises(ConfigError):
            make_plan(SIZES, longer, tight)


def test_too_little_ram_is_told_apart():
    with pytest.raises(ConfigError, match="host memory") as caught:
        make_plan(SIZES, FULL, H200.with_budgets(12 * GIB, 32 * GIB))
    assert caught.value.param == "ram_budget"


def test_unified_memory_holds_no_second_copy():
    spark = cards.parse("128GiB,200GB/s,120TFLOPs,ram=128GiB,unified")
    assert make_plan(SIZES, FULL, spark).residences == Residences()


def test_what_the_operator_fixed_stays():
    wishes = Wishes(resident_blocks=7, chunking=Chunking(mlp_rows=4096))
    plan = make_plan(SIZES, FULL, H200, wishes)
    assert plan.resident_blocks == 7
    assert plan.chunking.mlp_rows == 4096


def test_a_plan_as_json_names_its_units():
    found = make_plan(SIZES, FULL, H200.with_budgets(12 * GIB, None)).as_dict()
    assert [c["name"] for c in found["components"]] == ["dit", "text", "video", "audio"]
    assert [s["name"] for s in found["stages"]] == ["encode", "pack", "denoise", "decode"]
    assert found["peak_bytes"] == max(s["peak_bytes"] for s in found["stages"])


# Hardware.


def test_a_described_gpu():
    got = cards.parse("24GiB,25GB/s,330TFLOPs")
    assert got.vram_bytes == 24 * GIB
    assert got.h2d_bytes_per_s == 25e9
    assert got.matmul_flops == 330e12
    assert got.fp8_flops is None
    more = cards.parse("24 GiB, 25 GB/s, 0.33 PFLOPs, ram=48GiB, fp8=660TFLOPs, attention=200TFLOPs")
    assert (more.ram_bytes, more.fp8_flops, more.attention_flops) == (48 * GIB, 660e12, 200e12)
    assert cards.parse("H200") is H200


@pytest.mark.parametrize(
    "text", ["", "24GiB", "24GiB,25GB/s", "24GiB,25GB/s,330", "24GiB,24GiB,1GB/s,1TFLOPs", "ram=3TFLOPs,1GiB", "abc"]
)
def test_a_description_that_says_too_little_is_refused(text):
    with pytest.raises(ConfigError, match="gpu="):
        cards.parse(text)


def test_measured_figures_are_kept(tmp_path):
    path = tmp_path / "deep" / "gpu.json"
    hardware.save(H200, path)
    assert hardware.load(path) == H200
    path.write_text("{}")
    assert hardware.load(path) is None
    assert hardware.load(tmp_path / "absent") is None


@pytest.mark.parametrize("dit", [None, LayerwiseConfig(resident=10)])
def test_the_peak_of_every_stage_by_hand(dit):
    """From packing on, what the request holds between its steps counts, too; in its encoding nothing is packed yet."""
    where, chunking = Residences(dit=dit, text="streamed", video="evicted", audio="evicted"), Chunking(mlp_rows=8192)
    plan = Pricing(SIZES, FULL, H200, Wishes()).plan(where, chunking)
    weights = [
        wb.dit_weights(SIZES, QuantizeConfig(), dit),
        wb.text_weights(SIZES, "streamed"),
        wb.video_weights(SIZES, "evicted"),
        wb.audio_weights(SIZES, "evicted"),
    ]
    blocks, text, video, audio = (w.visiting for w in weights)
    always = sum(w.fixed for w in weights) + (96 << 20)
    held = stage_bytes.held_bytes(SIZES, FULL, whole_modulation=WHOLE_BYTES)
    assert held > 58_758 * 2 * 48 * 2  # the rotary table alone
    refiner = max(wb.refiner_bytes(SIZES.dit, 2)) if dit else 0
    decode = video + stage_bytes.decode_bytes(SIZES, FULL)
    wanted = {
        "encode": text + stage_bytes.text_bytes(SIZES, FULL),
        "pack": held + max(refiner, stage_bytes.table_bytes(SIZES, FULL)),
        "denoise": held + blocks + stage_bytes.forward_bytes(SIZES, FULL.rows, chunking),
        "decode": held + max(decode, audio + stage_bytes.sound_bytes(SIZES, FULL)),
    }
    assert {s.name: s.peak_bytes for s in plan.stages} == {name: always + peak for name, peak in wanted.items()}
