"""What the host launches around the blocks of a step: few calls, and hardly more when requests share it.

A call that makes no tensor (a view) launches nothing and is not counted. The output norm is one kernel on a GPU and
many calls in the CPU's reference, so it counts as one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.worker.batching import Batcher
from talkies.request import Target, VideoRequest


class Launches(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, made = (
            {x.untyped_storage().data_ptr() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)}
            for tree in ((args, kwargs), out)
        )
        if made - given or func._schema.is_mutable:
            self.names[func.overloadpacket.__name__] += 1
        return out


@pytest.fixture
def engine(tiny_folder):
    """An engine whose blocks launch nothing."""
    engine = Engine.open(tiny_folder)
    c = engine.components
    for partition, dit in c.dits.items():
        c.runners[partition] = replace(c.runners[partition], blocks=lambda x, view, modulation, start, stop: x)
        # Whatever the values: what is counted is the call.
        one_call = lambda x, weight, shift, scale, runs, *, eps, dtype: x.to(dtype, copy=True)  # noqa: E731
        dit.ops = replace(dit.ops, rms_modulate=one_call)
    return engine


def launches(engine, count, **changes):
    c = engine.components
    request = VideoRequest(prompt="x", num_sigmas=5, target=Target(num_frames=22), **changes)
    states = [pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, request))) for _ in range(count)]
    batcher = Batcher(c)
    batcher.step(states)  # what a group shares is made
    with Launches() as seen:
        batcher.step(states)
    return seen.names


def test_a_step_of_one_request_launches_little_around_its_blocks(engine):
    names = launches(engine, 1)
    # Two products to embed and two to project, one concatenation, one norm, five calls for both streams' Euler steps.
    assert names["linear"] == 4
    assert names["cat"] == 1
    assert sum(n for name, n in names.items() if name.startswith("_foreach")) == 5
    assert sum(names.values()) <= 12, names


def test_sharing_adds_a_fixed_number_of_launches(engine):
    two, four = launches(engine, 2), launches(engine, 4)
    assert four == two
    # Rows of each stream, modulation and its output, and the rows of each head are gathered.
    assert sum(two.values()) - sum(launches(engine, 1).values()) <= 6, two
