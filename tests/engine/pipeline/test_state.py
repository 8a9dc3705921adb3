"""A request between two steps can be saved and goes on as if nothing had happened."""

import pytest
import torch

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.request import Target, VideoRequest


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder)


def fresh(engine, **changes):
    request = VideoRequest(**{"prompt": "x", "num_sigmas": 4, "target": Target(num_frames=22), **changes})
    return pipeline.pack(
        engine.components, pipeline.encode(engine.components, pipeline.prepare(engine.components, request))
    )


def finish(engine, state):
    while not state.done:
        denoise_step(engine.components, state)
    return state


def test_a_restored_run_ends_in_the_same_bits(engine):
    whole = finish(engine, fresh(engine))
    broken = fresh(engine)
    denoise_step(engine.components, broken)
    saved = {name: tensor.clone() for name, tensor in broken.tensors().items()}
    resumed = fresh(engine)
    resumed.restore(saved)
    assert resumed.step == 1
    finish(engine, resumed)
    assert torch.equal(resumed.video_rows, whole.video_rows)
    assert torch.equal(resumed.audio_rows, whole.audio_rows)


def test_a_state_of_another_request_is_refused(engine):
    saved = fresh(engine).tensors()
    with pytest.raises(ValueError, match="shape"):
        fresh(engine, target=Target(num_frames=39)).restore(saved)


def test_outputs_of_one_request_differ_by_seed_alone(engine):
    request = VideoRequest(prompt="x", num_sigmas=3, seed=5, num_outputs=2, target=Target(num_frames=22))
    clips = engine.generate_all(request)
    alone = engine.generate(request.replace(seed=6, num_outputs=1))
    assert [c.metadata["request"]["seed"] for c in clips] == [5, 6]
    assert (clips[1].frames == alone.frames).all()
    assert (clips[1].audio == alone.audio).all()
    assert (clips[0].frames != clips[1].frames).any()
