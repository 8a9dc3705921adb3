"""A share of a tensor, and where its parts lie in a checkpoint's files.

A cut speaks of our tensor; files order rows differently (see ``h3/dit_keys.py``), but what is a run of whole heads, or
of values and gates, in ours is a few runs in theirs: a reader that wants half a tensor reads half of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Form, Layout, Spec


@dataclass(frozen=True, slots=True)
class Cut:
    """``spans`` (start, stop) along ``axis``, joined in this order."""

    axis: int
    spans: tuple[tuple[int, int], ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The share, in memory of its own: it must not keep the whole alive."""
        parts = [tensor.narrow(self.axis, start, stop - start) for start, stop in self.spans]
        return torch.cat(parts, self.axis) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class Run:
    """``start .. stop`` along the cut's axis of the ``part``-th of the file's tensors."""

    part: int
    start: int
    stop: int


def file_runs(spec: Spec, cut: Cut, layout: Layout, config: DiTConfig) -> Iterator[Run]:
    """What to read of the tensors of ``keys.file_keys``, in the order of ours. Queries, keys and values are cut by
    whole heads; no span crosses from one kind, or from values to gates, to the next."""
    for start, stop in cut.spans:
        if cut.axis == 0 and spec.form is Form.QKV and layout is not Layout.REPACKED:
            yield from _qkv_runs(start, stop, layout, config)
        elif cut.axis == 0 and spec.form is Form.GATED and layout is not Layout.PORT:
            half = spec.shape[0] // 2
            assert start // half == (stop - 1) // half, (start, stop)
            other = half if start < half else -half
            yield Run(0, start + other, stop + other)
        else:
            yield Run(0, start, stop)


def _qkv_runs(start: int, stop: int, layout: Layout, config: DiTConfig) -> Iterator[Run]:
    kind, first = divmod(start, config.inner_dim)
    last = first + stop - start
    assert last <= config.inner_dim, (start, stop)
    if layout is Layout.PORT:
        yield Run(kind, first, last)
        return
    size = config.attention_head_dim
    assert first % size == last % size == 0, (start, stop)
    for head in range(first // size, last // size):  # the original: q, k, v of head 0, then of head 1, ...
        row = (3 * head + kind) * size
        yield Run(0, row, row + size)
