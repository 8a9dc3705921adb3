"""What of a request an approximating attention computes exactly, and a model whose linears are fp8."""

from __future__ import annotations

import pytest
import torch

from talkies import Engine, VideoRequest
from talkies.attention import flash3
from talkies.attention.base import Trimmed
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.forward.group import view_of_step
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker.batching import Batcher
from talkies.errors import ConfigError
from talkies.kernels.fp8 import E4M3
from talkies.kernels.select import REFERENCE
from talkies.request import Target
from tests.attention.fake_flash3 import FakeFlash3


@pytest.fixture(scope="module")
def bf16_engine():
    """In the precision that fa3 takes."""
    return Engine.open(dtype="bfloat16")


@pytest.fixture
def fake(bf16_engine, monkeypatch):
    """The stand-in for fa3 under the fp8 backend of a loaded engine."""
    stand_in = FakeFlash3()
    attend = Trimmed(flash3.Flash3Fp8(flash3.Flash3(stand_in), REFERENCE), "fa3-fp8")
    components = bf16_engine.components
    monkeypatch.setattr(components, "attend", attend)
    for dit in components.dits.values():
        monkeypatch.setattr(dit, "attend", attend)
    return stand_in


def _state(engine, num_sigmas=5, seed=1, **fields):
    request = VideoRequest(
        prompt="a red ball", num_sigmas=num_sigmas, seed=seed, target=Target(num_frames=22), **fields
    )
    components = engine.components
    return pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, request)))


def _dtypes(fake):
    seen = {call[1] for call in fake.calls}
    fake.calls.clear()
    return seen


def test_the_first_and_the_last_forward_are_exact(bf16_engine, fake):
    state = _state(bf16_engine)
    fake.calls.clear()
    seen = []
    while not state.done:
        denoise_step(bf16_engine.components, state)
        seen.append(_dtypes(fake))
    assert seen == [{torch.bfloat16}, {E4M3}, {E4M3}, {torch.bfloat16}]
    assert state.video_rows.isfinite().all()


def test_requests_in_one_forward_keep_what_is_exact_for_each(bf16_engine, fake):
    ahead, behind = _state(bf16_engine), _state(bf16_engine, seed=2)
    denoise_step(bf16_engine.components, ahead)
    fake.calls.clear()
    Batcher(bf16_engine.components).step([ahead, behind])  # the second of one, the first of the other
    rows = behind.layout.num_rows
    exact = {call for call in fake.calls if call[1] == torch.bfloat16}
    assert exact == {("dense", torch.bfloat16, rows, rows)}
    assert {call[0] for call in fake.calls if call[1] == E4M3} == {"varlen"}


def test_an_exact_backend_leaves_the_view_alone(embedded_engine):
    state = _state(embedded_engine)
    assert view_of_step(state, embedded_engine.components.attend.exactness) is state.view
    assert state.view.documents is None


def test_conditions_keep_their_queries_exact(bf16_engine, fake, tmp_path):
    from PIL import Image

    from talkies.request import Condition

    picture = tmp_path / "grey.png"
    Image.new("RGB", (112, 64), (120, 90, 60)).save(picture)
    if "fl2va" not in bf16_engine.limits.tasks:
        pytest.skip("the embedded checkpoint has no keyframe partition")
    state = _state(bf16_engine, conditions=(Condition(kind="image", uri=str(picture), role="first"),))
    spans = state.view.documents.exact
    assert sum(b - a for a, b in spans) == state.layout.num_condition_video_rows
    denoise_step(bf16_engine.components, state)
    fake.calls.clear()
    denoise_step(bf16_engine.components, state)
    assert {call[1] for call in fake.calls} == {E4M3, torch.bfloat16}


def test_an_fp8_engine_makes_a_clip_close_to_the_exact_one(embedded_engine):
    engine = Engine.open(quantization="fp8")
    dit = next(iter(engine.components.dits.values()))
    assert dit.blocks[0].ff.up.weight.dtype == E4M3
    assert dit.blocks[0].norm1.weight.dtype == torch.float32
    rows = []
    for each in (embedded_engine, engine):
        state = _state(each)
        while not state.done:
            denoise_step(each.components, state)
        rows.append(state.video_rows)
    error = ((rows[0] - rows[1]).norm() / rows[0].norm()).item()
    assert 1e-4 < error < 0.2


def test_options_that_cannot_be_met_are_refused_before_weights_are_read():
    with pytest.raises(ConfigError, match="fa3 cannot run here"):
        Engine.open(device="cpu", attention="fa3")
    with pytest.raises(ConfigError, match="quantization='int3'"):
        Engine.open(quantization="int3")
    with pytest.raises(ConfigError, match="no kernel set is called 'cuda'"):
        Engine.open(kernels="cuda")
