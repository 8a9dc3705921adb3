"""What a CUDA graph is made of: a stream to record on, a pool of memory that all graphs of a worker share.

Graphs of one worker run one after another on one stream, and what a caller reads is copied out of a graph before the
next one runs: so the memory of their activations may be the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Recording:
    """``replay`` does again what was recorded, on the current stream; ``num_bytes`` were reserved for it."""

    replay: Callable[[], object]
    num_bytes: int


class Recorder(Protocol):
    """Who records work on a device."""

    def record(self, run: Callable[[], object]) -> Recording:
        """Of a ``run`` that has run before with tensors of the same shapes. Whether it computes now is the recorder's
        affair. Raises what ``run`` or the device raises; nothing of a failed recording stays."""
        ...

    def renew(self) -> None:
        """All recordings are gone: the next one begins with memory of its own."""
        ...


class CudaRecorder:
    """Records ``torch.cuda.CUDAGraph`` objects."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # torch's handle, a pair of integers

    def record(self, run: Callable[[], object]) -> Recording:
        stream, current = self._ready_stream(), torch.cuda.current_stream(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        # torch.cuda.graph() would empty the allocator's cache first, which the next eager stage had to fill again.
        with torch.cuda.stream(stream):
            # Other threads (an encoder, a reader of media) may call CUDA meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with suppress(RuntimeError):  # says that the recording is invalid; ``run`` said why
                    graph.capture_end()
                self._close_pool()
                raise
            graph.capture_end()
        current.wait_stream(stream)
        return Recording(graph.replay, max(0, torch.cuda.memory_reserved(self._device) - before))

    def renew(self) -> None:
        # A pool that lost its last graph cannot be joined again; its memory is free for whoever asks next.
        self._pool = None

    def _close_pool(self) -> None:
        """After a recording that the device declared invalid, whose end torch may not tell its allocator.

        An allocator that takes a recording to be under way frees nothing that another stream has used.
        """
        end = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):  # it was told
                end(torch.cuda.current_device() if self._device.index is None else self._device.index, self._pool)

    def _ready_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
            with torch.cuda.stream(self._stream):
                # cuBLAS makes its workspace at the first product on a stream and keeps it for good: made during a
                # recording, it would hold on to the graphs' pool.
                x = torch.zeros(16, 16, dtype=torch.bfloat16, device=self._device)
                torch.mm(x, x)
        return self._stream
