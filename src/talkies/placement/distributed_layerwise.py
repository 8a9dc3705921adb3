"""Distributed layerwise offload: one host copy of the weights per node, however many ranks stream it.

Blocks lie in shared memory, one file each, written by one rank and mapped by all. To bring a block in, each of N ranks
uploads its own N-th of it and an all-gather completes it on every device: the node's buses work side by side and each
byte leaves host memory once. The order of uploads is that of ``layerwise.Streamed``, equal on all ranks as long as
they call the same modules in the same order.

A rank that fails says so in a flag that the others read before each collective; one that dies breaks the collective
itself. Either way the others end with ``WorkerDied`` that names it, and none waits longer than the group's timeout.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from talkies.errors import ConfigError, TalkiesError, WorkerDied
from talkies.placement.flat import ALIGNMENT_BYTES, FlatLayout, parameters_of
from talkies.placement.host import SHM, HostBuffer
from talkies.placement.layerwise import NUM_SLOTS, Streamed, rebind, weights_of

PREFIX = "talkies-dlo"


@dataclass(frozen=True, slots=True)
class _Pending:
    module: nn.Module
    layout: FlatLayout
    num_bytes: int  # a multiple of the number of ranks


class SharedBlocks:
    """The host copy. Every rank calls ``settle`` for every block, in any order, then all call ``publish``."""

    def __init__(self, group: dist.ProcessGroup, *, pin: bool, folder: Path = SHM) -> None:
        """All ranks of ``group`` must be on one node. Collective."""
        self._group, self._pin, self._folder = group, pin, folder
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        sweep(folder)
        names: list[object] = [f"{PREFIX}-{os.getpid()}-{secrets.token_hex(6)}"]
        dist.broadcast_object_list(names, group_src=0, group=group)
        self._token = str(names[0])
        self._pending: dict[int, _Pending] = {}
        self._failure: str | None = None
        self.buffers: dict[int, HostBuffer] = {}
        self.flags: HostBuffer | None = None

    def settle(self, index: int, module: nn.Module) -> None:
        """Takes block ``index`` off the hands of whoever loads it; one rank keeps it, the others forget it at once.

        A failure is raised by ``publish``, on every rank: here the others would wait for this one.
        """
        tensors = parameters_of(module)
        layout = FlatLayout.of(tensors)
        unit = ALIGNMENT_BYTES * self.world
        self._pending[index] = _Pending(module, layout, -(-layout.num_bytes // unit) * unit)
        try:
            if index % self.world == self.rank and self._failure is None:
                buffer = HostBuffer.shared(self._path(index), self._pending[index].num_bytes, create=True, pin=False)
                layout.pack(tensors, buffer.flat)
                self.buffers[index] = buffer
        except TalkiesError as error:
            self._failure = str(error)
        rebind(module, layout, [torch.empty(f.shape, dtype=f.dtype, device="meta") for f in layout.fields])

    def publish(self) -> None:
        """Maps what the others wrote and points the modules at it. Collective; raises the same error on all ranks."""
        mine = set(self.buffers)
        try:
            if self.rank == 0 and self._failure is None:
                self.flags = HostBuffer.shared(self._folder / f"{self._token}-flags", 4096, create=True, pin=False)
            self._agree()
            try:
                if self.flags is None:
                    self.flags = HostBuffer.shared(self._folder / f"{self._token}-flags", 4096, create=False, pin=False)
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
            self._agree()
        finally:
            # Mapped by all, or by nobody: the names are not needed any more, and a killed process leaves none.
            for index in mine:
                self._path(index).unlink(missing_ok=True)
            if self.rank == 0:
                (self._folder / f"{self._token}-flags").unlink(missing_ok=True)
        for index, pending in self._pending.items():
            views = pending.layout.views(self.buffers[index].flat)
            rebind(pending.module, pending.layout, list(views.values()))

    def _agree(self) -> None:
        found: list[object] = [None] * self.world
        dist.all_gather_object(found, self._failure, group=self._group)
        for rank, failure in enumerate(found):
            if failure is not None:
                raise ConfigError(f"rank {rank} cannot share its weights: {failure}", param="/dev/shm")

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._token}-{index}"

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()
        if self.flags is not None:
            self.flags.close()


class GatherFetch:
    """Brings a block in by slices; see the module's text. ``staging`` is one slice of device memory per rank."""

    def __init__(
        self, shared: SharedBlocks, order: Sequence[int], group: dist.ProcessGroup, device: torch.device
    ) -> None:
        assert shared.flags is not None, "publish() comes first"
        self._shared, self._order, self._group = shared, list(order), group
        self.rank, self.world = shared.rank, shared.world
        self.slot_bytes = max(shared.buffers[i].flat.numel() for i in order)
        self._flags = shared.flags.flat[: self.world]
        self._staging = torch.empty(self.slot_bytes // self.world, dtype=torch.uint8, device=device)

    def __call__(self, index: int, slot: Tensor) -> None:
        self._check()
        flat = self._shared.buffers[self._order[index]].flat
        size = flat.numel() // self.world
        staging = self._staging[:size]
        # On the stream of the caller's lane: the slice, then the collective, which waits for it on its own stream.
        staging.copy_(flat[self.rank * size : (self.rank + 1) * size], non_blocking=True)
        try:
            dist.all_gather_into_tensor(slot[: flat.numel()], staging, group=self._group)
        except RuntimeError as error:
            self.fail()
            self._check(besides=self.rank)
            raise WorkerDied(
                f"rank {self.rank}: another rank left while weights were gathered: {_first_line(error)}",
                hint="the job failed; the engine's ranks are restarted together",
            ) from None

    def fail(self) -> None:
        """Tells the other ranks that this one cannot go on."""
        self._flags[self.rank] = 1

    def _check(self, besides: int = -1) -> None:
        failed = [r for r, flag in enumerate(self._flags.tolist()) if flag and r != besides]
        if failed:
            raise WorkerDied(
                f"rank {failed[0]} failed: rank {self.rank} stops, too",
                hint="its own error is in its log",
            )

    def close(self) -> None:
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._shared.close()


def stream_shared(
    modules: Sequence[nn.Module],
    shared: SharedBlocks,
    order: Sequence[int],
    group: dist.ProcessGroup,
    device: torch.device,
    slots: int = NUM_SLOTS,
) -> Streamed:
    """Streams published ``modules``; ``order[i]`` is the index that ``modules[i]`` was settled under.

    An exception inside one of them is told to the other ranks before it goes on to the caller.
    """
    fetch = GatherFetch(shared, order, group, device)
    streamed = Streamed([weights_of(m) for m in modules], fetch, device, slots, slot_bytes=fetch.slot_bytes)
    for module in modules:
        module.forward = _telling(module.forward, fetch)
    return streamed


def _telling(forward: Callable[..., Tensor], fetch: GatherFetch) -> Callable[..., Tensor]:
    def call(*args: object, **kwargs: object) -> Tensor:
        try:
            return forward(*args, **kwargs)
        except BaseException:
            fetch.fail()
            raise

    return call


def sweep(folder: Path = SHM) -> int:
    """Removes files of processes that were killed before they could; returns how many."""
    removed = 0
    for path in folder.glob(f"{PREFIX}-*"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(path.name.removeprefix(PREFIX + "-").split("-")[0])
            if not Path(f"/proc/{pid}").exists():
                path.unlink()
                removed += 1
    return removed


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
