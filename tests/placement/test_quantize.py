"""Linears in e4m3: what becomes of the weights while they load, and of a forward."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

from talkies.attention import registry
from talkies.errors import ConfigError
from talkies.h3.timesteps import step_plan
from talkies.kernels import select
from talkies.kernels.fp8 import E4M3
from talkies.kernels.select import REFERENCE
from talkies.model.chunking import Chunking
from talkies.model.modulation import unfolded
from talkies.model.weights import build_dit
from talkies.placement.quantize import (
    LINEARS,
    QuantizeConfig,
    check_device,
    linear_names,
    placer,
    product_error,
    quantized_names,
)
from tests.kernels.sets import needs_triton
from tests.model.tiny import CONFIG, tiny_dit, tiny_layout, tiny_rows

CPU = torch.device("cpu")
FP8 = QuantizeConfig(method="fp8")


class Source:
    """The tensors of a resident tiny DiT, one at a time."""

    config = CONFIG

    def __init__(self, dtype=torch.float32):
        self.dit = tiny_dit(dtype=dtype)
        self.tensors = {name: p.data for name, p in self.dit.named_parameters()}

    def top(self, *, adaln=True):
        yield from ((n, t.clone()) for n, t in self.tensors.items() if not n.startswith("blocks."))

    def block(self, index, *, adaln=True):
        prefix = f"blocks.{index}."
        return {n.removeprefix(prefix): t.clone() for n, t in self.tensors.items() if n.startswith(prefix)}


def _built(config=FP8, dtype=torch.float32, ops=REFERENCE):
    place = placer(config, CONFIG, ops, CPU)
    return build_dit(Source(dtype), attend=registry.create("sdpa"), ops=ops, place=place)


def _forward(dit, layout, rows):
    plan = step_plan(layout, torch.tensor(0.25), torch.tensor(0.5))
    return torch.cat([v.flatten() for v in dit(*rows, layout, unfolded(dit, plan))])


def _relative(got, want):
    return ((got - want).norm() / want.norm()).item()


def test_only_the_products_of_the_blocks_become_e4m3():
    dit = _built()
    e4m3 = {name for name, p in dit.named_parameters() if p.dtype == E4M3}
    assert e4m3 == {f"blocks.{i}.{linear}.weight" for i in range(CONFIG.num_layers) for linear in LINEARS}
    for name in e4m3:
        scale = dit.get_parameter(name + "_scale")
        assert scale.shape == (dit.get_parameter(name).shape[0], 1)
        assert scale.dtype == torch.float32
    for island in ("proj_in", "audio_proj_in", "proj_out", "audio_proj_out", "time_embedder.linear_1"):
        assert dit.get_parameter(island + ".weight").dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_forward_is_close_to_the_unquantised_one(dtype):
    layout = tiny_layout()
    rows = tiny_rows(layout)
    want, got = _forward(tiny_dit(dtype=dtype), layout, rows), _forward(_built(dtype=dtype), layout, rows)
    assert got.dtype == torch.float32
    assert 1e-4 < _relative(got, want) < 0.1


def test_the_product_is_that_of_the_dequantised_values():
    dit = _built()
    linear = dit.blocks[0].ff.up
    x = torch.randn(33, CONFIG.hidden_size)
    rows = REFERENCE.quantize_rows(x)
    want = rows.dequantized() @ (linear.weight.float() * linear.weight_scale).T
    torch.testing.assert_close(linear(rows), want)
    assert torch.equal(linear(x), linear(rows))


@pytest.mark.parametrize("chunking", [Chunking(mlp_rows=64), Chunking(head_groups=2)], ids=str)
def test_chunks_change_nothing(chunking):
    layout = tiny_layout(audio_latents=129)
    rows, dit = tiny_rows(layout), _built()
    whole = _forward(dit, layout, rows)
    dit.use_chunking(chunking)
    torch.testing.assert_close(_forward(dit, layout, rows), whole, rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted kernels only")
@pytest.mark.parametrize("quantize", [QuantizeConfig(), FP8], ids=["plain", "fp8"])
def test_a_forward_through_interpreted_kernels_equals_the_reference(quantize):
    layout = tiny_layout(5, keyframe=False, audio_latents=4)
    rows = tiny_rows(layout)
    want, got = (_forward(_built(quantize, ops=select.create(name)), layout, rows) for name in ("reference", "triton"))
    # One e4m3 value on the other side of a tie is 6 % of that value; without fp8 only the order of sums differs.
    assert _relative(got, want) < (1e-2 if quantize.method == "fp8" else 1e-5)


@pytest.fixture
def ada(monkeypatch):
    """The CPU, taken for a GPU that multiplies e4m3."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    return CPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["reference", "triton"])
def test_products_of_this_gpu_are_right(name):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no CUDA device that multiplies e4m3")
    assert 0.03 < product_error(select.create(name), torch.device("cuda")) < 0.05


def test_a_device_whose_products_are_right_is_taken(ada):
    assert 0.03 < product_error(REFERENCE, CPU) < 0.05
    check_device(ada, REFERENCE)


@pytest.mark.parametrize("factor", [0.25, float("nan")])
def test_a_device_whose_products_are_wrong_is_refused_by_name(ada, factor):
    ops = dataclasses.replace(REFERENCE, fp8_linear=lambda *args, **kw: factor * REFERENCE.fp8_linear(*args, **kw))
    with pytest.raises(ConfigError, match=r"text_quantization=fp8: .* NVIDIA L4 are off by (0.75|nan)") as caught:
        check_device(ada, ops, "text_quantization")
    assert (caught.value.param, caught.value.hint[:27]) == ("text_quantization", "use text_quantization=none,")


def test_a_device_without_e4m3_is_refused(ada, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ConfigError, match=r"quantization=fp8 needs compute capability 8\.9, this is 8\.6"):
        check_device(ada, REFERENCE)


def test_exclusions_are_exact_names_or_patterns():
    chosen = quantized_names(QuantizeConfig(method="fp8", exclude=("blocks.0.*", "blocks.2.ff.down")), CONFIG)
    assert not any(name.startswith(("blocks.0.", "token_refiner.")) for name in chosen)
    assert "blocks.2.ff.down" not in chosen
    assert "blocks.2.ff.up" in chosen
    assert quantized_names(QuantizeConfig(), CONFIG) == frozenset()
    assert set(linear_names(CONFIG)) >= chosen


def test_an_exclusion_that_names_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"no linear is called 'blocks\.7\.attn\.to_q'.*blocks\.0\.attn\.to_qkv"):
        quantized_names(QuantizeConfig(method="fp8", exclude=("blocks.7.attn.to_q",)), CONFIG)
    with pytest.raises(ConfigError, match=r"quantization='int4'.*none or fp8"):
        QuantizeConfig(method="int4")


def test_loading_holds_one_block_besides_what_is_finished():
    alive, most = weakref.WeakSet(), []
    place = placer(FP8, CONFIG, REFERENCE, CPU)
    source = Source()
    block = source.block

    def watched_block(index, *, adaln=True):
        gc.collect()
        most.append(len(alive))
        tensors = block(index, adaln=adaln)
        alive.update(t for n, t in tensors.items() if n.removesuffix(".weight") in LINEARS)
        return tensors

    source.block = watched_block
    build_dit(source, attend=registry.create("sdpa"), place=place)
    assert most == [0] * CONFIG.num_layers  # of the blocks before, nothing unquantised is left
