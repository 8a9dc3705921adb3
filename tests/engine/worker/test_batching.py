"""Requests that share a forward: the same clips as alone, and nothing of one in the other."""

import gc
import weakref

import pytest
import torch

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker.batching import Batcher, batch_key
from talkies.request import Target, VideoRequest
from talkies.stepcache import registry as step_caches

# float32, sums of other lengths inside the matrix products; of the size of the states, over a whole run.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


def fresh(engine, prompt, **changes):
    values = {"num_sigmas": 5, "target": Target(num_frames=22), **changes}
    components = engine.components
    prepared = pipeline.prepare(components, VideoRequest(prompt=prompt, **values))
    return pipeline.pack(components, pipeline.encode(components, prepared))


def requests(engine):
    """Different texts, lengths, schedules and positions in them."""
    return [
        fresh(engine, "one"),
        fresh(engine, "another, longer prompt", seed=7, target=Target(num_frames=39)),
        fresh(engine, "three", num_sigmas=8, video_shift=5.0),
    ]


def distance(a, b):
    return float((a - b).norm() / b.norm())


def test_together_equals_alone(engine):
    alone, together = requests(engine), requests(engine)
    for state in alone:
        while not state.done:
            denoise_step(engine.components, state)
    batcher = Batcher(engine.components)
    batcher.step([together[0]])  # they need not be at the same step
    while group := [state for state in together if not state.done]:
        batcher.step(group)
    for a, b in zip(alone, together, strict=True):
        assert distance(b.video_rows, a.video_rows) <= TOLERANCE
        assert distance(b.audio_rows, a.audio_rows) <= TOLERANCE


def test_one_alone_is_the_plain_step_bit_for_bit(engine):
    plain, batched = fresh(engine, "x"), fresh(engine, "x")
    denoise_step(engine.components, plain)
    Batcher(engine.components).step([batched])
    assert torch.equal(plain.video_rows, batched.video_rows)
    assert torch.equal(plain.audio_rows, batched.audio_rows)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("sick", [0, 1])
def test_a_nan_stays_in_its_own_document(engine, poison, sick):
    healthy, reference = requests(engine)[:2], requests(engine)[:2]
    with torch.inference_mode():
        healthy[sick].video_rows[3] = poison
    batcher, clean = Batcher(engine.components), Batcher(engine.components)
    for _ in range(3):
        batcher.step(healthy)
        clean.step(reference)
    assert not torch.isfinite(healthy[sick].video_rows).all()
    well = 1 - sick
    assert torch.equal(healthy[well].video_rows, reference[well].video_rows)
    assert torch.equal(healthy[well].audio_rows, reference[well].audio_rows)


def test_another_partner_changes_nothing_beyond_rounding(engine):
    first, second = fresh(engine, "x"), fresh(engine, "x")
    batcher = Batcher(engine.components)
    for partner, state in (("a quiet sea", first), ("a loud, fast, red train", second)):
        others = fresh(engine, partner, seed=9)
        while not state.done:
            batcher.step([state, others])
    assert distance(first.video_rows, second.video_rows) <= TOLERANCE


def test_only_states_that_may_share_have_a_key(engine):
    a, b = fresh(engine, "x"), fresh(engine, "y", num_sigmas=2)
    assert batch_key(a) == batch_key(b)
    assert batch_key(a) is not None
    c = fresh(engine, "z")
    c.partition = "ref2va"  # another DiT
    assert batch_key(c) not in (batch_key(a), None)
    denoise_step(engine.components, b)
    assert b.done
    assert batch_key(b) is None
    a.step_cache = step_caches.create("teacache", {"threshold": 1.0})  # decides for its own request alone
    assert batch_key(a) == batch_key(fresh(engine, "w"))


def test_what_is_forgotten_is_gone(engine):
    """A group holds the layouts of its requests, their text and their angles: none of it may outlive them."""
    states = [fresh(engine, "one"), fresh(engine, "two", seed=3)]
    batcher = Batcher(engine.components)
    batcher.step(states)
    gone = [weakref.ref(state.layout.positions) for state in states]
    gone += [weakref.ref(batcher._group.refined_text), weakref.ref(batcher._group.view.cos_SA)]
    states.clear()
    batcher.forget()
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
