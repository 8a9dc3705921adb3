"""Counts the bytes of live tensors while code runs, on a CPU: what a GPU's allocator would be asked for.

Fused ops count as their outputs, as a kernel's do; what their references hold in between is left out.
"""

from __future__ import annotations

import dataclasses
import weakref
from contextlib import contextmanager

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from talkies.kernels.fp8 import Fp8Rows
from talkies.kernels.select import REFERENCE


class Meter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = {}

    def track(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        num_bytes = storage.nbytes()
        self.live += num_bytes
        self.peak = max(self.peak, self.live)
        self._known[key] = weakref.finalize(storage, self._gone, key, num_bytes)

    def _gone(self, key, num_bytes):
        self._known.pop(key, None)
        self.live -= num_bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.track(leaf)
        return out

    def fused(self, op):
        def call(*args, **kwargs):
            with _disable_current_modes():
                out = op(*args, **kwargs)
            for value in out if isinstance(out, tuple) else (out,):
                if isinstance(value, Fp8Rows):
                    self.track(value.data)
                    self.track(value.scale)
                elif isinstance(value, torch.Tensor):
                    self.track(value)
            return out

        return call


@contextmanager
def meter():
    seen = Meter()
    with seen:
        yield seen


def fused_ops(seen):
    """The references, counted as kernels: q and k are written where they lie."""

    def in_place(qkv, weight_q, weight_k, cos, sin, *, eps):
        q, k, v = REFERENCE.qk_norm_rope(qkv, weight_q, weight_k, cos, sin, eps=eps)
        views = qkv.unbind(1)
        for view, value in zip(views, (q, k, v), strict=True):
            view.copy_(value)
        return views

    names = [f.name for f in dataclasses.fields(REFERENCE)]
    ops = {name: seen.fused(getattr(REFERENCE, name)) for name in names}
    return dataclasses.replace(REFERENCE, **ops | {"qk_norm_rope": seen.fused(in_place)})
