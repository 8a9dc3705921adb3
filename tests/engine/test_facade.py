"""The engine as a program holds it: from threads, across a fork, and with what is no request."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
import torch

from talkies import Engine, Target, VideoRequest
from talkies.engine import config
from talkies.engine.config import EngineConfig
from talkies.engine.pipeline import path as pipeline
from talkies.errors import ConfigError, InvalidRequest, MediaError
from talkies.request import Condition

REQUEST = VideoRequest(prompt="a red ball bounces slowly", num_sigmas=6, target=Target(num_frames=22))


def test_threads_take_turns():
    """Streamed weights belong to one request: two at once made other pictures, without an error."""
    engine = Engine.open_config(EngineConfig(offload="layer"))
    requests = [REQUEST.replace(seed=seed) for seed in range(3)]
    expected = [engine.generate(request).frames for request in requests]
    found: list[tuple[int, object]] = []

    def work(i: int) -> None:
        try:
            found.append((i, engine.generate(requests[i]).frames))
        except BaseException as error:  # would be lost in the thread
            found.append((i, error))

    threads = [threading.Thread(target=work, args=(i % 3,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for i, frames in found:
        assert isinstance(frames, np.ndarray), frames
        assert np.array_equal(frames, expected[i])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_to_open_its_own(embedded_engine):
    embedded_engine.generate(REQUEST)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # without the refusal it waits for threads that do not exist
        signal.alarm(20)
        try:
            embedded_engine.generate(REQUEST)
        except ConfigError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert "spawn" in answer.read()


@pytest.mark.parametrize("request_", ["a red ball", 7, [], {"prompt": "a red ball"}])
def test_what_is_no_request_is_named(embedded_engine, request_):
    with pytest.raises(InvalidRequest, match="must be a VideoRequest, got"):
        embedded_engine.generate(request_)


def test_a_request_is_judged_from_configs_alone(monkeypatch):
    monkeypatch.setattr(pipeline, "encode", None)
    assert pipeline.prepare_ahead(EngineConfig(), REQUEST).geometry.num_frames == 22
    missing = REQUEST.replace(conditions=(Condition(kind="image", uri="none.png", role="first"),))
    with pytest.raises(MediaError, match=r"none\.png does not exist"):
        pipeline.prepare_ahead(EngineConfig(), missing)
    with pytest.raises(InvalidRequest, match="seconds=99 is outside"):
        pipeline.prepare_ahead(EngineConfig(), REQUEST.replace(target=Target(seconds=99)))


@pytest.mark.parametrize("device", ["", "cpu:3", "tpu", 7])
def test_devices_that_mean_nothing_are_refused(device):
    with pytest.raises(ConfigError, match="use auto, cpu, cuda or cuda:N"):
        Engine.open(device=device)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_cuda_device_has_a_number(monkeypatch, device):
    """``torch.cuda.set_device``, which ranks call, takes no other."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert config._device(device) == torch.device("cuda:0")
