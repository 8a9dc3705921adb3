"""How copies into device buffers and the work that reads them keep out of each other's way.

On a GPU copies run on a stream of their own and events order them; on a CPU the same calls copy at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Lane(Protocol):
    """Slots ``0 .. n``; the caller uploads into a slot only when what reads it was enqueued and released."""

    def open(self) -> None:
        """The slots' memory is new."""
        ...

    def upload(self, slot: int, copy: Callable[[], None]) -> None:
        """Runs ``copy`` after the last release of the slot."""
        ...

    def acquire(self, slot: int) -> None:
        """What the caller enqueues from now on sees the last upload."""
        ...

    def release(self, slot: int) -> None:
        """What was enqueued so far may still read the slot, what comes later does not."""
        ...

    def close(self) -> None:
        """The slots' memory may be given to others after what the caller has enqueued."""
        ...


class HostLane:
    """Everything at once and in order."""

    def open(self) -> None:
        pass

    def upload(self, slot: int, copy: Callable[[], None]) -> None:
        copy()

    def acquire(self, slot: int) -> None:
        pass

    def release(self, slot: int) -> None:
        pass

    def close(self) -> None:
        pass


class CudaLane:
    """Streams and events are made once; an event is recorded again and again."""

    def __init__(self, device: torch.device, num_slots: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._ready = [torch.cuda.Event() for _ in range(num_slots)]
        self._free = [torch.cuda.Event() for _ in range(num_slots)]

    def open(self) -> None:
        # The allocator may hand out memory that enqueued kernels of the caller's stream still use.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def upload(self, slot: int, copy: Callable[[], None]) -> None:
        self._stream.wait_event(self._free[slot])
        with torch.cuda.stream(self._stream):
            copy()
        self._ready[slot].record(self._stream)

    def acquire(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ready[slot])

    def release(self, slot: int) -> None:
        self._free[slot].record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def lane_for(device: torch.device, num_slots: int) -> Lane:
    return CudaLane(device, num_slots) if device.type == "cuda" else HostLane()
