"""Stands in for a CUDA graph on a CPU: ATen calls are recorded with their tensors and done again on the same memory.

No Python of the recorded function runs at a replay, and every result lands where it landed when it was recorded: what a
function takes from the host, or a tensor that it makes anew each time, is frozen as in a real graph.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talkies.placement.graphs.recorder import Recording


class _Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func is not torch.ops.aten._local_scalar_dense.default, "a recording read a value back"
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    @torch.inference_mode()  # a device does not ask who made its memory
    def replay(self):
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                # A view or an in-place call has written where it should; other results were new memory.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeRecorder:
    """``num_bytes`` is what each recording claims to need; ``fails`` makes the next ones raise."""

    def __init__(self, num_bytes=1000, fails=None):
        self.num_bytes, self.fails = num_bytes, fails
        self.recorded = self.renewed = self.replayed = 0

    def record(self, run):
        if self.fails is not None:
            raise self.fails
        self.recorded += 1
        with _Tape() as tape:
            run()
        return Recording(lambda: self._replay(tape), self.num_bytes)

    def renew(self):
        self.renewed += 1

    def _replay(self, tape):
        self.replayed += 1
        tape.replay()
