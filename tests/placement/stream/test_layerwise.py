"""Streaming changes where weights are and nothing else: outputs are bit-equal, whatever is streamed in what order."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.errors import ConfigError
from talkies.h3.timesteps import step_plan
from talkies.kernels.select import REFERENCE
from talkies.model.chunking import Chunking
from talkies.model.modulation import build_table
from talkies.model.weights import build_dit
from talkies.placement.quantize import QuantizeConfig, placer
from talkies.placement.stream.flat import FlatLayout, parameters_of
from talkies.placement.stream.lanes import HostLane
from talkies.placement.stream.layerwise import (
    LayerwiseConfig,
    PinnedFetch,
    Streamed,
    stream,
    streamed_positions,
    to_host,
    weights_of,
)
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows

CPU = torch.device("cpu")


class Recorder(HostLane):
    """Poisons a slot when it is given away, as a transfer that comes too early would."""

    def __init__(self):
        self.calls = []

    def upload(self, slot, copy):
        self.calls.append(("upload", slot))
        copy()

    def acquire(self, slot):
        self.calls.append(("acquire", slot))

    def release(self, slot):
        self.calls.append(("release", slot))


def _stack(num=5, width=7):
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(width, width) for _ in range(num)).requires_grad_(False)


def _streamed(modules, slots=2, lane=None):
    buffers = [to_host(m, pin=False) for m in modules]
    return Streamed([weights_of(m) for m in modules], PinnedFetch(buffers), CPU, slots, lane)


def _run(modules, x):
    for m in modules:
        x = torch.tanh(m(x))
    return x


def test_a_flat_layout_gives_back_what_was_packed():
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.randn(4, 2).to(torch.float8_e4m3fn),
        "none": torch.empty(0, 3),
    }
    layout = FlatLayout.of(tensors)
    flat = torch.full((layout.num_bytes,), 255, dtype=torch.uint8)
    layout.pack(tensors, flat)
    for name, view in layout.views(flat).items():
        assert view.dtype == tensors[name].dtype
        assert view.is_contiguous()
        assert torch.equal(view.float(), tensors[name].float())
    assert [f.offset for f in layout.fields] == [0, 256, 512, 768]
    assert layout.num_bytes == 768


@pytest.mark.parametrize(
    ("num", "resident", "slots", "expected"),
    [
        (6, 0, 2, (0, 1, 2, 3, 4, 5)),
        (6, 3, 2, (1, 3, 5)),
        (7, 4, 2, (1, 3, 6)),
        (6, 4, 2, ()),  # two streamed ones would sit in two slots for good
        (6, 4, 1, (2, 5)),
        (6, 9, 2, ()),
    ],
)
def test_streamed_modules_are_spread_evenly(num, resident, slots, expected):
    assert streamed_positions(num, LayerwiseConfig(resident=resident, slots=slots)) == expected


@pytest.mark.parametrize("resident", range(48))
def test_no_gap_is_two_longer_than_another(resident):
    positions = streamed_positions(50, LayerwiseConfig(resident=resident))
    assert len(positions) == 50 - resident
    ring = [*positions, positions[0] + 50]
    gaps = [b - a for a, b in pairwise(ring)]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_any_number_of_slots_gives_the_same_bits(slots):
    modules, x = _stack(), torch.randn(3, 7)
    expected = _run(modules, x)
    streamed = _streamed(modules, slots)
    for _ in range(3):
        assert torch.equal(_run(modules, x), expected)
    assert streamed.device_bytes == slots * streamed.slot_bytes


def test_in_the_loop_each_module_crosses_once_and_ahead():
    modules, x, lane = _stack(), torch.randn(3, 7), Recorder()
    streamed = _streamed(modules, 2, lane)
    _run(modules, x)
    lane.calls.clear()
    before = streamed.bytes_moved
    _run(modules, x)
    assert sum(kind == "upload" for kind, _ in lane.calls) == 5
    assert streamed.bytes_moved - before == 5 * streamed.slot_bytes
    # Every module finds its weights asked for before it is called: no upload stands directly before its acquire.
    for (kind, slot), (after, used) in pairwise(lane.calls):
        assert not (kind == "upload" and after == "acquire" and slot == used), lane.calls
    # A slot is uploaded into only when the last thing that happened to it was its release.
    last = {}
    for kind, slot in lane.calls:
        if kind == "upload":
            assert last.get(slot, "release") == "release"
        last[slot] = kind


def test_a_jump_and_a_skip_get_the_right_weights():
    modules, x = _stack(6), torch.randn(3, 7)
    expected = [m(x) for m in modules]
    _streamed(modules, 2)
    for index in (0, 1, 4, 5, 0, 3, 3, 2, 5, 1):
        assert torch.equal(modules[index](x), expected[index]), index


def test_a_jump_takes_the_slot_of_what_is_needed_last():
    streamed = _streamed(_stack(6), 3)
    streamed._holds = [0, 2, 5]
    assert streamed._victim(3) == 1  # after 3 come 4, 5 and 0; 2 has just been
    streamed._holds = [0, None, 5]
    assert streamed._victim(1) == 1


def test_between_calls_parameters_are_the_hosts():
    modules, x = _stack(), torch.randn(3, 7)
    streamed = _streamed(modules)
    weights = [m.weight for m in modules]
    _run(modules, x)
    assert all(m.weight is w for m, w in zip(modules, weights, strict=True))
    streamed.release()
    assert not streamed.is_open
    assert torch.equal(_run(modules, x), _run(modules, x))


def test_a_module_that_raises_leaves_the_stream_whole():
    modules, x = _stack(), torch.randn(3, 7)
    expected = _run(modules, x)
    _streamed(modules)
    with pytest.raises(RuntimeError):
        modules[2](torch.randn(3, 8))
    assert torch.equal(_run(modules, x), expected)


def test_a_copy_that_fails_is_not_taken_for_whole():
    modules, x = _stack(), torch.randn(3, 7)
    expected = _run(modules, x)
    streamed = _streamed(modules)
    real, fail = streamed._fetch, [2]

    def fetch(index, slot):
        if fail and index == fail[0]:
            fail.pop()
            slot.fill_(7)
            raise RuntimeError("bus")
        real(index, slot)

    streamed._fetch = fetch
    with pytest.raises(RuntimeError, match="bus"):
        _run(modules, x)
    assert 2 not in streamed._holds
    assert torch.equal(_run(modules, x), expected)


def test_slots_made_in_inference_mode_serve_outside_of_it():
    modules, x = _stack(), torch.randn(3, 7)
    expected = _run(modules, x)
    _streamed(modules)
    with torch.inference_mode():
        assert torch.equal(_run(modules, x), expected)
    assert torch.equal(_run(modules, x), expected)


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize("chunking", [Chunking(), Chunking(head_groups=2, mlp_rows=64)])
def test_a_streamed_dit_equals_the_resident_one(resident, chunking):
    layout = tiny_layout()
    plan = step_plan(layout, torch.tensor([0.3]), torch.tensor([0.6]))
    expected = tiny_dit()
    modulation = build_table(expected, [plan]).step(0)
    dit = tiny_dit()
    dit.use_chunking(chunking)
    dit.drop_adaln()
    streamed = stream(dit.blocks, CPU, LayerwiseConfig(resident=resident, slots=1))
    refiner = stream(dit.token_refiner.blocks, CPU, LayerwiseConfig(slots=1))
    assert streamed is not None
    with torch.inference_mode():
        for _ in range(2):
            got, want = (d(*tiny_rows(layout), layout, modulation) for d in (dit, expected))
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert refiner is None  # one block: it sits in its slot for good


@pytest.mark.parametrize("resident", [0, 2, 5])
def test_each_module_gets_its_weights_once_whether_it_streams_or_not(resident):
    modules, prepared = _stack(), []
    stream(modules, CPU, LayerwiseConfig(resident=resident, slots=1), prepare=lambda m, to: prepared.append(m))
    assert sorted(map(id, prepared)) == sorted(map(id, modules))


@pytest.mark.parametrize("exclude", [(), ("blocks.1.*", "blocks.*.ff.down")])
def test_an_fp8_dit_streams_its_quantised_bytes(exclude):
    config = replace(fw.TINY, num_layers=5)
    source = RandomDiT(config, CPU, torch.float32)
    place = placer(QuantizeConfig(method="fp8", exclude=exclude), config, REFERENCE, CPU)
    buffers = {}

    def settle(name, block):
        if name.startswith("blocks."):
            buffers[int(name.split(".")[1])] = to_host(block, pin=False)

    attend = registry.create("sdpa")
    resident = build_dit(source, attend=attend, adaln=False, place=place)
    dit = build_dit(source, attend=attend, adaln=False, place=place, settle=settle)
    streamed = stream(dit.blocks, CPU, buffers=buffers)
    whole = sum(t.nbytes for t in parameters_of(resident.blocks[0]).values())
    assert streamed.slot_bytes >= whole
    if not exclude:
        assert streamed.slot_bytes < 2 * whole
        assert dit.blocks[0].attn.to_qkv.weight.dtype == torch.float8_e4m3fn
    inputs = fw.make_inputs(source, [fw.SMOKE], CPU, torch.float32)
    with torch.inference_mode():
        for _ in range(2):
            got, want = (fw.Step(d, inputs)() for d in (dit, resident))
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("bad", [{"resident": -1}, {"slots": 0}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ConfigError):
        LayerwiseConfig(**bad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("slots", [2, 3])
def test_on_a_gpu_no_transfer_overtakes_a_kernel(slots):
    device = torch.device("cuda")
    modules = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(6)).to(device).requires_grad_(False)
    x = torch.randn(8192, 4096, device=device)
    expected = _run(modules, x)
    streamed = stream(modules, device, LayerwiseConfig(slots=slots))
    for _ in range(3):
        outputs = [_run(modules, x) for _ in range(3)]  # the host runs far ahead
        assert all(torch.equal(output, expected) for output in outputs)
        streamed.release()
        torch.full((64, 4096, 4096), 7.0, device=device)  # reuses the slots' memory at once
    assert not streamed.is_open
    streamed.close()


def test_moving_to_the_host_holds_one_tensor_besides_the_buffer(monkeypatch):
    """The whole of a text encoder is one module when it is evicted: a second copy of it must not exist."""
    from talkies.placement.stream import layerwise

    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5))).requires_grad_(False)
    alive = weakref.WeakSet(p for p in module.parameters())
    wanted, left = {n: p.clone() for n, p in module.named_parameters()}, []
    real = layerwise.copy_bytes

    def copy_bytes(tensor, view):
        gc.collect()
        left.append(len(alive))
        real(tensor, view)

    monkeypatch.setattr(layerwise, "copy_bytes", copy_bytes)
    buffer = to_host(module, pin=False)
    assert left == list(range(10, 0, -1))
    assert all(torch.equal(p, wanted[n]) for n, p in module.named_parameters())
    start, stop = buffer.flat.data_ptr(), buffer.flat.data_ptr() + buffer.flat.numel()
    assert all(start <= p.data_ptr() < stop for p in module.parameters())


class LateLane(HostLane):
    """As late as a transfer may be: what is uploaded arrives when somebody waits for it, and until then the slot holds
    NaN. Nothing is uploaded over what may still be read."""

    def __init__(self):
        self.streamed, self._copies, self._in_use = None, {}, set()

    def upload(self, slot, copy):
        assert slot not in self._in_use
        self.streamed._slots[slot].fill_(255)
        self._copies[slot] = copy

    def acquire(self, slot):
        self._in_use.add(slot)
        if slot in self._copies:
            self._copies.pop(slot)()

    def release(self, slot):
        self._in_use.discard(slot)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_module_waits_for_its_upload(slots):
    """Whatever has not arrived when a module begins is NaN in what it makes."""
    modules, x, lane = _stack(), torch.randn(3, 7), LateLane()
    expected = _run(modules, x)
    lane.streamed = _streamed(modules, slots, lane)
    for _ in range(3):
        assert torch.equal(_run(modules, x), expected)
        for index in (4, 1, 1, 3):
            assert modules[index](x).isfinite().all()
