"""The order of copies and of what reads them, on streams that are made up: each runs as early or as late as the waits
allow. On a GPU the same faults show once in a thousand steps, or never on the machine at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch

from talkies.placement.stream.lanes import CudaLane


class Device:
    """Streams are queues of closures and of waits for a mark; an event's newest mark is what a wait is for."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.compute = self.current = Stream(self)

    def run(self, first: Stream) -> None:
        """Everything, ``first`` whenever it can go on and the others only when it cannot."""
        while any(s.queue for s in self.streams):
            order = sorted(self.streams, key=lambda s: s is not first)
            assert any(s.step() for s in order), "every stream waits for another one"


class Stream:
    def __init__(self, device: Device) -> None:
        self.device, self.queue = device, []
        device.streams.append(self)

    def do(self, work: Callable[[], None]) -> None:
        self.queue.append((work, None))

    def wait_event(self, event: Event) -> None:
        self.queue.append((None, event.mark))

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def step(self) -> bool:
        if not self.queue:
            return False
        work, mark = self.queue[0]
        if mark is not None and not mark:
            return False
        self.queue.pop(0)
        if work is not None:
            work()
        return True


class Event:
    """A mark is a list that is empty until the stream has come to it; one never recorded holds nobody up."""

    def __init__(self) -> None:
        self.mark: list[int] = [1]

    def record(self, stream: Stream) -> None:
        mark: list[int] = []
        self.mark = mark
        stream.do(lambda: mark.append(1))


@pytest.fixture
def device(monkeypatch):
    device = Device()

    @contextmanager
    def stream(which):
        before, device.current = device.current, which
        yield
        device.current = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(device))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)
    return device


def _passes(device, lane, num_slots, num_blocks=7):
    """Blocks stream through the slots as ``Streamed`` does it; returns where what they read will stand."""
    slots: list[object] = ["someone else's"] * num_slots
    device.compute.do(lambda: slots.__setitem__(slice(None), ["still in use"] * num_slots))  # enqueued before
    lane.open()
    read: list[object] = []
    for block in range(num_blocks):
        slot = block % num_slots
        lane.upload(slot, lambda s=slot, b=block: device.current.do(lambda: slots.__setitem__(s, b)))
        lane.acquire(slot)
        device.compute.do(lambda s=slot: read.append(slots[s]))
        lane.release(slot)
    return slots, read


@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("hurry", ["compute", "copies"])
def test_every_block_reads_its_own_weights(device, num_slots, hurry):
    lane = CudaLane(torch.device("cuda"), num_slots)
    _, read = _passes(device, lane, num_slots)
    device.run(device.compute if hurry == "compute" else device.streams[1])
    assert read == list(range(7))


@pytest.mark.parametrize("hurry", ["compute", "copies"])
def test_a_closed_lane_leaves_the_memory_to_others(device, hurry):
    """A last upload that nobody waited for must not write into what the allocator has given away."""
    lane = CudaLane(torch.device("cuda"), 2)
    slots, _ = _passes(device, lane, 2)
    lane.upload(0, lambda: device.current.do(lambda: slots.__setitem__(0, "ahead")))
    lane.close()
    device.compute.do(lambda: slots.__setitem__(slice(None), ["another's"] * 2))
    device.run(device.compute if hurry == "compute" else device.streams[1])
    assert slots == ["another's"] * 2
