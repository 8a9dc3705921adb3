"""Distributed layerwise offload: one host copy of the weights per node, however many ranks stream it.

Blocks lie in shared memory, one file each, written by one rank and mapped by all. To bring a block in, each of N ranks
uploads its own N-th of it and an all-gather completes it on every device: the node's buses work side by side and each
byte leaves host memory once. The order of uploads is that of ``layerwise.Streamed``, equal on all ranks as long as
they call the same modules in the same order. What crosses is bytes: e4m3 weights and their scales as they are.

Tensor-parallel shards need none of this: each rank streams its own (``tensor_parallel``). How a failing rank ends the
others is in ``peers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from talkies.errors import TalkiesError
from talkies.placement.ranks.peers import Peers
from talkies.placement.stream.flat import ALIGNMENT_BYTES, FlatLayout, parameters_of
from talkies.placement.stream.host_memory import HostBuffer
from talkies.placement.stream.layerwise import NUM_SLOTS, Streamed, rebind, weights_of


@dataclass(frozen=True, slots=True)
class _Pending:
    module: nn.Module
    layout: FlatLayout
    num_bytes: int  # a multiple of the number of ranks


class SharedBlocks:
    """The host copy. Every rank calls ``settle`` for every block, in any order, then all call ``publish``."""

    def __init__(self, peers: Peers, *, pin: bool) -> None:
        self.peers, self._pin, self._name = peers, pin, peers.new_name()
        self._pending: dict[int, _Pending] = {}
        self._failure: str | None = None
        self.buffers: dict[int, HostBuffer] = {}

    def settle(self, index: int, module: nn.Module) -> None:
        """Takes block ``index`` off the hands of whoever loads it; one rank keeps it, the others forget it at once.

        A failure is raised by ``publish``, on every rank: here the others would wait for this one.
        """
        tensors = parameters_of(module)
        layout = FlatLayout.of(tensors)
        unit = ALIGNMENT_BYTES * self.peers.world
        self._pending[index] = _Pending(module, layout, -(-layout.num_bytes // unit) * unit)
        try:
            if index % self.peers.world == self.peers.rank and self._failure is None:
                buffer = HostBuffer.shared(self._path(index), self._pending[index].num_bytes, create=True, pin=False)
                layout.pack(tensors, buffer.flat)
                self.buffers[index] = buffer
        except (OSError, TalkiesError) as error:
            self._failure = str(error)
        rebind(module, layout, [torch.empty(f.shape, dtype=f.dtype, device="meta") for f in layout.fields])

    def publish(self) -> None:
        """Maps what the others wrote and points the modules at it. Collective; raises the same error on all ranks."""
        mine = set(self.buffers)
        try:
            self.peers.agree(self._failure)
            try:
                for index, pending in self._pending.items():
                    if index not in mine:
                        self.buffers[index] = HostBuffer.shared(
                            self._path(index), pending.num_bytes, create=False, pin=False
                        )
                if self._pin:
                    for buffer in self.buffers.values():
                        buffer.pin()
            except (OSError, TalkiesError) as error:
                self._failure = str(error)
            self.peers.agree(self._failure)
        finally:
            # Mapped by all, or by nobody: the names are not needed any more, and a killed process leaves none.
            for index in mine:
                self._path(index).unlink(missing_ok=True)
        for index, pending in self._pending.items():
            views = pending.layout.views(self.buffers[index].flat)
            rebind(pending.module, pending.layout, list(views.values()))

    def _path(self, index: int) -> Path:
        return Path(f"{self._name}-{index}")

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()


class GatherFetch:
    """Brings a block in by slices; see the module's text. ``staging`` is one slice of device memory per rank."""

    def __init__(self, shared: SharedBlocks, order: Sequence[int], device: torch.device) -> None:
        self._shared, self._order, self._peers = shared, list(order), shared.peers
        self.slot_bytes = max(shared.buffers[i].flat.numel() for i in order)
        self._staging = torch.empty(self.slot_bytes // self._peers.world, dtype=torch.uint8, device=device)

    def __call__(self, index: int, slot: Tensor) -> None:
        peers, flat = self._peers, self._shared.buffers[self._order[index]].flat
        size = flat.numel() // peers.world
        staging = self._staging[:size]

        def gather() -> None:
            # On the stream of the caller's lane: the slice, then the collective, which this stream waits for. The
            # next fetch writes to ``staging`` on the same stream, so it never overtakes a collective that reads it.
            staging.copy_(flat[peers.rank * size : (peers.rank + 1) * size], non_blocking=True)
            dist.all_gather_into_tensor(slot[: flat.numel()], staging, group=peers.group)

        peers.together("weights were gathered", gather)

    def close(self) -> None:
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._shared.close()


def stream_shared(
    modules: Sequence[nn.Module],
    shared: SharedBlocks,
    order: Sequence[int],
    device: torch.device,
    slots: int = NUM_SLOTS,
) -> Streamed:
    """Streams published ``modules``; ``order[i]`` is the index that ``modules[i]`` was settled under.

    An exception inside one of them is told to the other ranks before it goes on to the caller.
    """
    fetch = GatherFetch(shared, order, device)
    streamed = Streamed([weights_of(m) for m in modules], fetch, device, slots, slot_bytes=fetch.slot_bytes)
    for module in modules:
        shared.peers.told_of(module)
    return streamed
