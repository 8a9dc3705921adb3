"""Cards by name: what a plan knows of a GPU that is not here."""

from __future__ import annotations

import pytest

from talkies.capacity import cards
from talkies.capacity.cards import parse
from talkies.capacity.hardware import GIB, H200
from talkies.errors import ConfigError


@pytest.mark.parametrize("name", ["4090", "RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090", " 4090 "])
def test_a_card_has_the_names_that_people_write(name):
    assert parse(name).name == "GeForce RTX 4090"


def test_the_measured_card_is_itself():
    assert parse("NVIDIA H200") is H200


def test_rates_are_the_share_that_an_h200_sustains():
    h100, a100 = parse("h100"), parse("a100-80gb")
    assert h100.matmul_flops == pytest.approx(H200.matmul_flops)  # the same chip with less memory
    assert h100.elementwise_bytes_per_s == pytest.approx(H200.elementwise_bytes_per_s * 3.35 / 4.8)
    assert h100.fp8_attention_flops == pytest.approx(H200.fp8_attention_flops)
    assert a100.matmul_flops == pytest.approx(312e12 * 730 / 989)
    assert (a100.fp8_flops, a100.fp8_attention_flops) == (None, None)
    assert not a100.has_fp8
    assert parse("b200").fp8_attention_flops is None  # its kernel is for Hopper


def test_what_follows_a_name_wins():
    card = parse("l40s, ram=256GiB, 12GB/s, fp8=400TFLOPs")
    assert (card.ram_bytes, card.h2d_bytes_per_s, card.fp8_flops) == (256 * GIB, 12e9, 400e12)
    assert card.vram_bytes == parse("l40s").vram_bytes


@pytest.mark.parametrize("name", cards.CARDS)
def test_every_card_says_that_it_was_never_tried(name):
    card = parse(name)
    assert "never ran" in card.source
    assert 10 * GIB < card.vram_bytes < 200 * GIB
    assert 0 < card.matmul_flops < (card.fp8_flops or 3e15)


def test_an_unknown_card_is_told_the_names():
    with pytest.raises(ConfigError, match="4090") as refused:
        parse("gtx1080")
    assert "mi300x" in str(refused.value)


def test_a_machine_that_nobody_gave_an_fp8_rate_may_have_one():
    assert parse("24GiB,25GB/s,150TFLOPs").has_fp8
