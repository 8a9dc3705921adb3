"""Engines whose ranks share rows: whole requests of every task equal those of one rank, and ranks end by name."""

from __future__ import annotations

import os
import signal
import threading
import time
import wave
from contextlib import closing

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.engine.config import EngineConfig
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.orders import Drop, Step, drop_ended
from talkies.engine.port.service import TERMINAL, Job
from talkies.engine.service.executor import Executor
from talkies.engine.worker.batching import Batcher
from talkies.errors import ConfigError, WorkerDied
from talkies.request import Condition, Target, VideoRequest
from tests.engine.load.test_ranks import _alive, _followers_of

TOLERANCE = 1e-5  # of the size of the states, over a whole run in float32
MESHES = [
    {"ulysses_degree": 2, "text_tensor_parallel": 2},
    {"ulysses_degree": 4, "text_tensor_parallel": 2},
    {"ring_degree": 2},
    {"ulysses_degree": 2, "ring_degree": 2},
    {"ulysses_degree": 2, "tensor_parallel": 2},
]


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    """One of each task; all of them are short."""
    folder = tmp_path_factory.mktemp("media")
    picture = folder / "p.png"
    pixels = np.random.default_rng(1).integers(0, 255, (128, 224, 3), np.uint8)
    Image.fromarray(pixels).save(picture)
    common = {"prompt": "a red ball bounces with a bell sound", "num_sigmas": 4, "seed": 3}
    target = Target(num_frames=22)
    return {
        "t2va": VideoRequest(**common, target=target),
        "fl2va": VideoRequest(
            **common, target=target, conditions=(Condition(kind="image", uri=str(picture), role="first"),)
        ),
        "ref2va": VideoRequest(**common, target=target, conditions=(Condition(kind="image", uri=str(picture)),)),
        "locked": VideoRequest(**common, target=target, conditions=(_own_sound(folder),)),
    }


def _own_sound(folder):
    """A soundtrack whose first half second is made anew."""
    path = folder / "s.wav"
    samples = np.random.default_rng(2).integers(-9000, 9000, (32_000, 2)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(32_000)
        file.writeframes(samples.tobytes())
    return Condition(kind="audio", uri=str(path), role="soundtrack", end_time_s=0.5)


def _packed(engine, request):
    c = engine.components
    return pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, request)))


def _run(engine, *states):
    """To the end, together where there are several."""
    batcher = Batcher(engine.components)
    while not states[0].done:
        batcher.step(list(states))
    return states


def _rows(states):
    return [rows for state in states for rows in (state.video_rows, state.audio_rows)]


def _everything(engine, requests):
    """The rows of each request alone, and of two of one partition that share their forwards."""
    found = {name: _rows(_run(engine, _packed(engine, request))) for name, request in requests.items()}
    two = (_packed(engine, requests["t2va"]), _packed(engine, requests["fl2va"].replace(seed=8)))
    return {**found, "two": _rows(_run(engine, *two))}


@pytest.fixture(scope="module")
def alone(requests):
    return _everything(Engine.open_config(EngineConfig(threads=1)), requests)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("degrees", MESHES, ids=lambda degrees: " ".join(f"{k}={v}" for k, v in degrees.items()))
def test_every_task_and_two_requests_together_equal_one_rank(degrees, alone, requests):
    with closing(Engine.open_config(EngineConfig(threads=1, **degrees))) as engine:
        found, again = (_everything(engine, requests) for _ in range(2))
        for name, rows in found.items():
            for got, want, once_more in zip(rows, alone[name], again[name], strict=True):
                assert float((got - want).norm() / want.norm()) <= TOLERANCE, name
                assert torch.equal(got, once_more), name


FP8 = {"quantization": "fp8", "offload": "layer", "head_groups": 2, "mlp_rows": 64}


@pytest.mark.timeout(120)
def test_fp8_streamed_and_in_chunks_is_as_near_as_on_one_rank(alone, requests):
    """A row's scale is its own. Ulysses computes the same sums; the ring's differ in their last bits, which moves some
    values to the next of e4m3: as far from float32 as before."""

    def rows(**options):
        with closing(Engine.open_config(EngineConfig(threads=1, **FP8, **options))) as engine:
            assert engine.components.residency.host_bytes > 0
            return _rows(_run(engine, _packed(engine, requests["fl2va"])))

    def apart(some, others):
        return max(float((a - b).norm() / b.norm()) for a, b in zip(some, others, strict=True))

    one, ulysses, ring = rows(), rows(ulysses_degree=2), rows(ring_degree=2)
    assert apart(ulysses, one) <= TOLERANCE
    assert 0 < apart(ring, alone["fl2va"]) < 1.2 * apart(one, alone["fl2va"])


@pytest.mark.timeout(120)
def test_ranks_that_drift_end_the_request_by_name(requests):
    with closing(Engine.open_config(EngineConfig(threads=1, ulysses_degree=2))) as engine:
        state, other = (_packed(engine, requests["t2va"].replace(seed=seed, num_sigmas=9)) for seed in (1, 2))
        batcher = Batcher(engine.components)
        for each in (state, other, state):  # requests in turn
            batcher.step([each])
        leader, told = engine.components.leader, []
        tell = leader._tell
        leader._tell = lambda order: (told.append(order), tell(order))
        del each, other
        batcher.forget()
        drop_ended(leader)
        batcher.step([state])
        assert told == [Drop(numbers=(2,)), Step(numbers=(1,))]  # what is over is nobody's; its neighbour goes on
        state.video_rows = state.video_rows + 1e-3  # on this rank alone
        with pytest.raises(WorkerDied, match="rank 1 drifted from rank 0 before forward 4: its rows differ"):
            batcher.step([state])
        assert "drifted" in engine.components.broken


@pytest.mark.timeout(60)
def test_degrees_that_cannot_be_are_refused_before_a_process_is_started():
    for degrees, words, hint in (
        ({"ulysses_degree": 3}, "ulysses_degree=3 does not divide 8 heads", "use 1, 2, 4, 8"),
        (
            {"ulysses_degree": 8, "tensor_parallel": 2},
            "ulysses_degree=8 does not divide the 4 heads that tensor_parallel=2 leaves",
            "use 1, 2, 4",
        ),
        (
            {"ulysses_degree": 4, "head_groups": 4},
            "ulysses_degree=4 does not divide the heads of one of head_groups=4 turns",
            "use 1, 2",
        ),
        (
            {"ring_degree": 2, "attention": "flex"},
            "ring_degree needs an attention that gives its log-sum-exp, and attention=flex does not here",
            "use attention=sdpa, or ulysses_degree in place of ring_degree",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            Engine.open_config(EngineConfig(threads=1, **degrees))
        assert words in str(caught.value)
        assert caught.value.hint == hint
    with pytest.raises(ConfigError, match="are 128 ranks, more than 64"):
        EngineConfig(ulysses_degree=32, tensor_parallel=4)


@pytest.mark.timeout(240)
@pytest.mark.slow
@pytest.mark.parametrize("when", ["encode", "denoise", "decode"])
def test_a_rank_that_is_killed_costs_seconds(when, tmp_path, caplog):
    """The job goes on with ranks of its own or never needed them, and so does the next one."""
    changed = threading.Condition()
    events, killed = [], []

    def on_event(event):
        with changed:
            events.append((time.monotonic(), event))
            changed.notify_all()
        hit = event.stage == when and (when != "denoise" or event.step == 3)
        if hit and not killed:
            victim = _followers_of(executor.worker_pid)[0]
            killed.append((time.monotonic(), victim))
            os.kill(victim, signal.SIGKILL)

    def ended(job_id):
        return next((e for _, e in events if e.job_id == job_id and e.kind in TERMINAL), None)

    executor = Executor(EngineConfig(threads=1, ulysses_degree=2, text_tensor_parallel=2))
    try:
        began = time.monotonic()
        executor.start(on_event)
        request = VideoRequest(prompt="a ball", num_sigmas=9, target=Target(num_frames=39), seed=3)
        for job_id in ("a", "b"):
            place = tmp_path / f"{job_id}.mp4"
            executor.submit(Job(id=job_id, request=request, outputs=(place,), resume_dir=tmp_path / job_id))
            with changed:
                assert changed.wait_for(lambda job_id=job_id: ended(job_id), 100.0), [e.kind for _, e in events]
            assert ended(job_id).kind == "finished", ended(job_id)
            assert place.stat().st_size > 1000
        (at, victim), *_ = killed
        later = [moment - at for moment, event in events if moment > at and event.kind in ("progress", *TERMINAL)]
        begin_s = next(moment for moment, event in events if event.stage is not None) - began
        # A new worker has loaded, and the job moves: 10 s, or on a machine that is busy not much more than a start.
        assert later[0] < max(10.0, 2 * begin_s)
        assert not _alive(victim)
    finally:
        executor.close(timeout_s=20.0)
    assert "rank 1 ended (exit code -9)" in caplog.text
