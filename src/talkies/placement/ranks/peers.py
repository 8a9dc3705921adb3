"""What the ranks of one node tell each other besides tensors: that one of them cannot go on, and why.

A collective that one rank never joins would hold the others until the group's timeout. So a rank that fails writes its
reason into memory that all of them map, and each reads it before the next collective; a rank that dies breaks the
collective itself. Either way the others end with ``WorkerDied`` that names it, and none waits longer than the timeout.

On a GPU a collective that was enqueued before the other rank failed spins on the device: who catches ``WorkerDied``
there must end the process (or abort the group), not synchronise.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from talkies.errors import ConfigError, TalkiesError, WorkerDied
from talkies.placement.stream.host_memory import SHM, HostBuffer

PREFIX = "talkies-ranks"
LEFT = "another rank left"
RECORD_BYTES = 512  # of a rank: one byte that says that it failed, then why, in UTF-8, to the first zero


class Peers:
    """The ranks of ``group``, all on one node. Collective to make, in the same order on all of them."""

    def __init__(self, group: dist.ProcessGroup, folder: Path = SHM) -> None:
        self.group, self.folder = group, folder
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        sweep(folder)
        names: list[object] = [f"{PREFIX}-{pid_namespace()}-{os.getpid()}-{secrets.token_hex(6)}"]
        dist.broadcast_object_list(names, group_src=0, group=group)
        self._token, self._num_names = str(names[0]), 0
        self._buffer = self._map(Path(self.new_name()), RECORD_BYTES * self.world)
        self._records = self._buffer.flat.numpy().reshape(self.world, RECORD_BYTES)

    def new_name(self) -> str:
        """A path for files of this group, the same on all ranks as long as they ask equally often."""
        self._num_names += 1
        return str(self.folder / f"{self._token}-{self._num_names}")

    def _map(self, path: Path, num_bytes: int) -> HostBuffer:
        buffer, failure = None, None
        try:
            for creates in (True, False):
                if creates == (self.rank == 0) and failure is None:
                    try:
                        buffer = HostBuffer.shared(path, num_bytes, create=creates, pin=False)
                    except (OSError, TalkiesError) as error:
                        failure = str(error)
                self.agree(failure)
        finally:
            # Mapped by all, or by nobody: the name is not needed any more, and a killed process leaves none.
            if self.rank == 0:
                path.unlink(missing_ok=True)
        assert buffer is not None
        return buffer

    def agree(self, failure: str | None) -> None:
        """All ranks go on, or all raise the same ``ConfigError`` with the first one's ``failure``. Collective."""
        found: list[object] = [None] * self.world
        dist.all_gather_object(found, failure, group=self.group)
        for rank, text in enumerate(found):
            if text is not None:
                raise ConfigError(f"rank {rank} cannot share its weights: {text}", param="/dev/shm")

    def fail(self, reason: BaseException | str) -> None:
        """Tells the others that this rank cannot go on. The first reason stays."""
        record = self._records[self.rank]
        if record[0]:
            return
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        encoded = first_line(text).encode()[: RECORD_BYTES - 2]
        record[1 : 1 + len(encoded)] = list(encoded)
        record[0] = 1  # last: whoever sees it may read the rest

    def check(self) -> None:
        """Raises ``WorkerDied`` when another rank has failed: it names one that did so by itself, if there is one."""
        found = {rank: self._reason(rank) for rank in range(self.world) if rank != self.rank and self._records[rank][0]}
        for rank, why in sorted(found.items(), key=lambda pair: pair[1].startswith(LEFT)):
            raise WorkerDied(
                f"rank {rank} failed ({why}): rank {self.rank} stops, too", hint="its own error is in its log"
            )

    def _reason(self, rank: int) -> str:
        return bytes(self._records[rank][1:].tobytes()).split(b"\0")[0].decode(errors="replace")

    def together(self, what: str, collective: Callable[[], Any]) -> None:
        """Runs a collective in which tensors of all ranks meet. Raises ``WorkerDied`` when one has failed or left."""
        self.check()
        try:
            collective()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.fail(f"{LEFT} while {what}")
            self.check()
            raise WorkerDied(
                f"rank {self.rank}: {LEFT} while {what}: {first_line(str(error))}",
                hint="the job failed; the engine's ranks are restarted together",
            ) from None

    def told_of(self, module: nn.Module) -> None:
        """From here on the other ranks are told when ``module`` raises, before the exception goes on to its caller."""
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return forward(*args, **kwargs)
            except WorkerDied:
                raise  # another rank's failure, which is known
            except BaseException as error:
                self.fail(error)
                raise

        module.forward = call

    def close(self) -> None:
        """No rank may use it any more."""
        self._records = self._records[:0].copy()
        self._buffer.close()


def sweep(folder: Path = SHM) -> int:
    """Removes files of processes that were killed before they could; returns how many.

    Containers may share the folder. What a process id names is known in its own namespace alone, so files of another
    one stay, as do those whose name does not say theirs.
    """
    removed = 0
    for path in folder.glob(f"{PREFIX}-{pid_namespace()}-*"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(path.name.removeprefix(f"{PREFIX}-{pid_namespace()}-").split("-")[0])
            if not Path(f"/proc/{pid}").exists():
                path.unlink()
                removed += 1
    return removed


def pid_namespace() -> str:
    """The number of this process's namespace of process ids, as digits; ``"unknown"`` where the system does not say."""
    try:
        return "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdigit()) or "unknown"
    except OSError:
        return "unknown"


def first_line(text: str) -> str:
    """Of an error's text, at most 200 characters."""
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else "no reason given"
