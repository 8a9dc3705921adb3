"""No step waits for the device: no value is read back, nothing crosses from pageable memory.

Proven without a GPU by steps over meta tensors, which have shapes and a device and no values: every call of torch is
seen, and one that would stop the host fails. What kernels and placement do on a real one is in
tests/placement/graphs/test_replay_gpu.py.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker.batching import Batcher
from talkies.model.modulation import StepModulation
from talkies.placement.apply import runner_of
from talkies.request import Condition, Target, VideoRequest
from talkies.sampling.anchors import Anchors

DEVICE = torch.device("meta")


class Waits(Exception):
    pass


class _NoLists(TorchFunctionMode):
    """A list of numbers reaches a device by a copy that the host waits for; for a meta tensor torch leaves it out."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and str(kwargs.get("device")) == "meta":
            raise Waits("a list crosses between host and device")
        return func(*args, **kwargs)


class _NoReads(TorchDispatchMode):
    """A value may be read on the CPU, and a CPU number may scale a device tensor; neither stops a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        devices = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal") and "meta" in devices:
            raise Waits(f"{name} reads from the device")
        results = {x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        if name in ("to", "_to_copy", "copy_") and len(devices | results) > 1:
            raise Waits(f"{name} crosses between host and device")
        return out


@contextmanager
def no_waits():
    with _NoLists(), _NoReads():
        yield


class Feed:
    """The modulation of each step on the fake device, as a real feed has brought it there."""

    def __init__(self, table):
        self._table = table

    def step(self, index):
        m = self._table.step(index)
        return StepModulation(_fake(m.params), m.runs, _fake(m.output), m.output_runs)


def _fake(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)


def _on_fake_device(state):
    view = replace(state.view, cos_SA=_fake(state.view.cos_SA), sin_SA=_fake(state.view.sin_SA))
    state.feed, state.view = Feed(state.table), view
    state.anchors = Anchors(_fake(state.anchors.video_rows), _fake(state.anchors.audio_rows))
    for name in ("refined_text", "video_rows", "audio_rows"):
        setattr(state, name, _fake(getattr(state, name)))


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


@pytest.fixture
def stepping(engine, tmp_path):
    """(components whose DiT is on a fake device, a maker of states there)."""
    from PIL import Image

    picture = tmp_path / "grey.png"
    Image.new("RGB", (64, 64), (128, 128, 128)).save(picture)
    first = Condition(kind="image", uri=str(picture), role="first")
    c = engine.components

    def packed(prompt, **changes):
        request = VideoRequest(prompt=prompt, num_sigmas=5, target=Target(num_frames=22), **changes)
        return pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, request)))

    states = [packed("one"), packed("another, longer prompt", conditions=(first,))]
    with torch.inference_mode():
        components = copy.copy(c)
        components.dits = {}
        for partition, dit in c.dits.items():
            moved = components.dits[partition] = copy.copy(dit)
            moved.__dict__["_modules"] = {name: _moved(child) for name, child in dit._modules.items()}
        components.runners = {partition: runner_of(dit) for partition, dit in components.dits.items()}
        for state in states:
            _on_fake_device(state)
        yield components, states


def _moved(module):
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {
        name: None if p is None else torch.nn.Parameter(_fake(p), requires_grad=False)
        for name, p in module._parameters.items()
    }
    twin.__dict__["_modules"] = {name: None if m is None else _moved(m) for name, m in module._modules.items()}
    return twin


def test_the_watch_sees_what_waits(stepping):
    x = torch.empty(3, device=DEVICE)
    for wait in (
        lambda: torch.tensor([1, 2], device=DEVICE),
        lambda: torch.ones(3).to(DEVICE),
        lambda: x.copy_(torch.ones(3)),
    ):
        with pytest.raises(Waits, match="crosses"), no_waits():
            wait()
    for wait in (lambda: x.sum().item(), lambda: bool(x.isfinite().all()), lambda: x.tolist(), lambda: x.cpu()):
        with pytest.raises((RuntimeError, NotImplementedError), match="meta tensor"), no_waits():
            wait()  # torch refuses these by itself
    with no_waits():
        assert (torch.tensor(2.0) * x).device == DEVICE


def test_a_step_waits_for_nothing(stepping):
    components, states = stepping
    for state in states:
        with no_waits():
            while not state.done:
                denoise_step(components, state)
        assert state.video_rows.device == DEVICE


def test_a_shared_step_waits_for_nothing_once_the_group_is_known(stepping):
    components, states = stepping
    states[0].task = states[1].task
    batcher = Batcher(components)
    batcher.step(states)  # rotary table and documents of the group cross here
    with no_waits():
        while not states[0].done:
            batcher.step(states)
    assert states[1].step == states[0].step == 4
