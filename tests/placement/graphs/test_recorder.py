"""A recording waits for what its inputs wait for, and what follows waits for it: seen without a device."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from talkies.placement.graphs.recorder import CudaRecorder


class FakeStream:
    def __init__(self, name, told):
        self.name, self._told = name, told

    def wait_stream(self, other):
        self._told.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def told(monkeypatch):
    """What happens, in order, on a device that is not there."""
    events = []

    class FakeGraph:
        def capture_begin(self, pool, capture_error_mode):
            events.append(f"begin {capture_error_mode} in pool {pool}")

        def capture_end(self):
            events.append("end")

        def replay(self):
            events.append("replay")

    @contextmanager
    def on(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    side, current = FakeStream("side", events), FakeStream("current", events)
    reserved = iter((100, 164))
    monkeypatch.setattr(CudaRecorder, "_ready_stream", lambda self: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 7)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: next(reserved))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return events


def test_a_recording_stands_between_what_was_asked_for_before_and_after(told):
    recording = CudaRecorder(torch.device("cpu")).record(lambda: told.append("run"))
    assert told == [
        "side waits for current",
        "on side",
        "begin thread_local in pool 7",
        "run",
        "end",
        "off side",
        "current waits for side",
    ]
    recording.replay()
    assert told[-1] == "replay"
    assert recording.num_bytes == 64
