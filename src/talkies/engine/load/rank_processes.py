"""The processes of one engine that runs on several devices: started, watched and ended by rank 0.

Rank 0 is the process that opened the engine (the worker of a server, or the command itself). The others hold their
shares of the DiTs and nothing else (``engine/pipeline/rank_main.py``), and end when rank 0 does, however that happens.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from talkies.engine.config import EngineConfig, ResolvedConfig
from talkies.engine.load.planning import Placement
from talkies.errors import ConfigError, TalkiesError, WorkerDied
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.leader import Leader
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.peers import Peers

log = logging.getLogger(__name__)
# A collective that waits longer has lost a rank. Loading is not inside one.
TIMEOUT = timedelta(seconds=120)
BEGIN_TIMEOUT_S = 120.0  # of a process to import torch and say hello
LOAD_TIMEOUT_S = 3600.0
NOTICE_S = 1.0  # for the system to say that a process is gone
GRACE_S = 10.0  # for the leader to notice a dead rank by itself


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a follower is started with."""

    config: EngineConfig
    placement: Placement
    rank: int
    store: int  # an inherited file, in memory, in which the ranks find each other


@dataclass(frozen=True, slots=True)
class RankStarted:
    pass


@dataclass(frozen=True, slots=True)
class Loaded:
    pass


class Ranks:
    """Rank 0's handle. ``groups`` are what the DiTs meet in, ``leader`` tells the others what to do."""

    def __init__(self, config: EngineConfig, placement: Placement, resolved: ResolvedConfig) -> None:
        """Starts the others and joins them; they load while this process does. Raises what one of them raises."""
        if dist.is_initialized():
            raise ConfigError(
                "one engine of several ranks is open in this process already",
                hint="close it first, or open the second one in a process of its own",
                param="tensor_parallel",
            )
        mesh = resolved.mesh
        self._followers: list[_Follower] = []
        self._ending = False
        # A file without a name: however the processes end, nothing of it stays. It is never closed: torch writes to its
        # number once more when it forgets the group, whenever that is, and the number must not be another file's then.
        self._store = os.memfd_create("talkies-ranks")
        try:
            for rank in range(1, mesh.size):
                told = Told(config=config, placement=placement, rank=rank, store=self._store)
                self._followers.append(_Follower(told))
            for follower in self._followers:
                follower.expect(RankStarted, BEGIN_TIMEOUT_S)
            self.groups = join(0, mesh, self._store, resolved.device, num_text=resolved.num_text)
        except BaseException:
            self._end(patience_s=0.0)  # they hold nothing yet, and who stops a start does not wait
            raise
        self.leader = Leader(self.groups, self._tell, self._who_died)
        for follower in self._followers:
            threading.Thread(target=self._watch, args=(follower,), name="rank-watch", daemon=True).start()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Of the other ranks."""
        return [follower.process for follower in self._followers]

    def wait_loaded(self) -> None:
        """Until every follower has its weights. Raises what one of them raises."""
        for follower in self._followers:
            follower.expect(Loaded, LOAD_TIMEOUT_S)

    def close(self) -> None:
        """Ends the others. The engine cannot run any more."""
        self._end(patience_s=5.0)

    def _end(self, patience_s: float) -> None:
        if self._ending:
            return
        self._ending = True
        for follower in self._followers:
            follower.end(patience_s)
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _tell(self, order: object) -> None:
        for follower in self._followers:
            follower.send(order)

    def _who_died(self) -> str | None:
        """A rank that did not end by itself: one that leaves because another has failed exits with 1. Waits a moment,
        since a socket may be known to be closed before the process is known to be gone."""
        deadline = time.monotonic() + NOTICE_S
        while True:
            for follower in self._followers:
                if follower.process.poll() not in (None, 0, 1):
                    return _ended(follower)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)

    def _watch(self, follower: _Follower) -> None:
        follower.process.wait()
        if self._ending:
            return
        reason = _ended(follower)
        log.error("%s", reason)
        self.leader.failure = self.leader.failure or reason
        # A collective on a GPU that waits for the dead rank cannot be interrupted, only left with its process.
        if not self.leader.busy:
            return
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            if not self.leader.busy:
                return
            time.sleep(0.1)
        log.error("rank 0 still waits for it: this process ends")
        os._exit(1)


class _Follower:
    """One other process, and the pipe to it."""

    def __init__(self, told: Told) -> None:
        self.rank = told.rank
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "talkies.engine.pipeline.rank_main", str(fd)],
                pass_fds=(fd, told.store),
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self.send(told)

    def send(self, message: Any) -> None:
        """Raises ``WorkerDied`` when nobody listens."""
        try:
            # Pickled here, so that a tensor goes by value: a Connection would send the name of shared memory.
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise WorkerDied(f"rank {self.rank} is gone", hint="its own error is in its log") from None

    def expect(self, kind: type, timeout_s: float) -> Any:
        """Its next message. Raises the error that it sent instead, or ``WorkerDied``."""
        try:
            if not self._connection.poll(timeout_s):
                raise WorkerDied(f"rank {self.rank} said nothing for {timeout_s:.0f} s")
            message = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(f"rank {self.rank} ended before it was ready", hint="its error is above") from None
        if isinstance(message, TalkiesError):
            raise message
        assert isinstance(message, kind), message
        return message

    def end(self, patience_s: float) -> None:
        self._connection.close()  # it leaves when the pipe ends
        try:
            self.process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _ended(follower: _Follower) -> str:
    return f"rank {follower.rank} ended (exit code {follower.process.poll()})"


def join(rank: int, mesh: Mesh, store: int, device: torch.device, *, num_text: int) -> RankGroups:
    """The groups of all ranks, which meet in the open file ``store``. Collective."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    meeting = dist.FileStore(f"/proc/self/fd/{store}", mesh.size)
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=mesh.size, timeout=TIMEOUT)
    group = dist.group.WORLD
    assert group is not None
    return RankGroups(mesh, Peers(group), TIMEOUT, num_text=num_text)
