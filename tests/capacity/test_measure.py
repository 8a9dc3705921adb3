"""Rates: what runs in turn, what is counted, what is kept. Clocks are fakes; the last test needs a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from talkies.attention import flash3, registry
from talkies.capacity import measure
from talkies.capacity.hardware import H200
from talkies.capacity.measure import Run
from talkies.capacity.seconds import operand_bytes
from talkies.kernels.fp8 import E4M3
from tests.attention.fake_flash3 import FakeFlash3
from tests.model.tiny import CONFIG

CPU = torch.device("cpu")


class Clock:
    def __init__(self):
        self.now = 0.0

    def spend(self, seconds, result=None):
        self.now += seconds
        return result


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "_mark", lambda device: clock.now)
    return clock


def test_the_card_is_busy_for_a_while_before_anything_counts(clock):
    slow_at_first = iter([5.0, 1.0, 1.0, 1.0])  # a kernel that compiles
    calls = []

    def first():
        calls.append("a")
        clock.spend(next(slow_at_first, 0.2))

    runs = [Run("a", 10.0, first), Run("b", 40.0, lambda: (calls.append("b"), clock.spend(1.0)))]
    found = measure._held(runs, CPU, hold_s=6.0)
    # A turn to begin with, one of 2 s that tells how many are 6 s, three that warm up, three that count.
    assert calls == ["a", "b"] * 8
    assert found["a"] == (30.0, pytest.approx(0.6), 3)
    assert found["b"] == (120.0, pytest.approx(3.0), 3)


@pytest.fixture
def block(monkeypatch, clock):
    """A tiny block whose products take 1 s each (0.25 in e4m3), fa3 8 s and its e4m3 form 3 s."""
    fake = FakeFlash3()
    attend = fake.flash_attn_func

    def timed(q, k, v, **scales):
        clock.spend(3.0 if q.dtype == E4M3 else 8.0)
        return attend(q, k, v, **scales)

    fake.flash_attn_func = timed
    monkeypatch.setattr(flash3, "load", lambda: fake)
    monkeypatch.setattr(measure, "ROWS", 33)
    monkeypatch.setattr(measure, "RELEASED", CONFIG)
    product, fp8_product = measure._product, measure._fp8_product
    monkeypatch.setattr(measure, "_product", lambda x, w: lambda: clock.spend(1.0, product(x, w)()))
    monkeypatch.setattr(measure, "_fp8_product", lambda x, w: lambda: clock.spend(0.25, fp8_product(x, w)()))
    return fake


PRODUCTS = 2 * 33 * (4 * CONFIG.inner_dim * CONFIG.hidden_size + 3 * CONFIG.ffn_dim * CONFIG.hidden_size)
ATTENTION = 4 * 33**2 * CONFIG.inner_dim


def test_an_approximating_backend_is_measured_both_ways(monkeypatch, block):
    monkeypatch.setattr(measure, "_has_fp8_products", lambda device: True)
    around = 33 * 11 * CONFIG.inner_dim
    assert around == operand_bytes(CONFIG, 33, fp8_attention=True)
    bf16, fp8 = measure.block_rates(CPU, "fa3-fp8", elementwise_bytes_per_s=around / 0.5)
    assert bf16.products == pytest.approx(PRODUCTS / 4)
    assert bf16.attention == pytest.approx(ATTENTION / 8)
    assert fp8.products == pytest.approx(PRODUCTS)
    # Half a second of the three makes operands, which timing.py counts by the byte.
    assert fp8.attention == pytest.approx(ATTENTION / 2.5)
    assert {dtype for _, dtype, _, _ in block.calls} == {torch.bfloat16, E4M3}


def test_an_exact_backend_has_one_rate(monkeypatch, block):
    monkeypatch.setattr(measure, "_has_fp8_products", lambda device: True)
    bf16, fp8 = measure.block_rates(CPU, "fa3", 1e12)
    assert bf16.attention == pytest.approx(ATTENTION / 8)
    assert fp8.products == pytest.approx(PRODUCTS)
    assert fp8.attention is None
    assert {dtype for _, dtype, _, _ in block.calls} == {torch.bfloat16}


def test_without_fp8_products_only_bf16_is_measured(block):
    bf16, fp8 = measure.block_rates(CPU, "fa3-fp8", 1e12)
    assert bf16.attention == pytest.approx(ATTENTION / 8)
    assert fp8 is None


def test_each_backend_is_measured_once(monkeypatch, tmp_path):
    asked = []

    def rates(device, attention):
        asked.append(attention)
        return replace(H200, attention_flops=float(len(asked)))

    monkeypatch.setattr(measure, "rates", rates)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = [measure.of_device(CPU, tmp_path, name).attention_flops for name in ("fa3", "fa3-fp8", "fa3", "fa3-fp8")]
    assert found == [1.0, 2.0, 1.0, 2.0]
    assert asked == ["fa3", "fa3-fp8"]
    assert len(list((tmp_path / "hardware").iterdir())) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpus_rates_repeat_and_leave_nothing_behind():
    device = torch.device("cuda")
    name = registry.resolve("auto", device, torch.bfloat16)
    before = torch.cuda.memory_allocated()
    first, second = measure.rates(device, name), measure.rates(device, name)
    assert torch.cuda.memory_allocated() == before
    for field in ("h2d_bytes_per_s", "matmul_flops", "attention_flops", "elementwise_bytes_per_s"):
        assert getattr(second, field) == pytest.approx(getattr(first, field), rel=0.1), field
    if torch.cuda.get_device_capability() >= (8, 9):
        assert first.fp8_flops > 1.3 * first.matmul_flops
