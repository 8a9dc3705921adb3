"""One of the ranks that follow: ``python -m talkies.engine.pipeline.rank_main FD``, started by
``engine/load/rank_processes.py``.

Holds its share of the DiTs, runs what rank 0 says, and ends when the pipe does.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from talkies.attention import registry as attention
from talkies.codecs.text.encoder import TextEncoder
from talkies.engine.config import EngineConfig, resolve
from talkies.engine.load.checkpoint import checkpoint_of
from talkies.engine.load.dits import build_dits
from talkies.engine.load.load_report import LoadReport
from talkies.engine.load.place_components import build_text
from talkies.engine.load.planning import cap
from talkies.engine.load.rank_processes import Loaded, RankStarted, Told, join
from talkies.engine.pipeline.follow import Follower
from talkies.engine.pipeline.orders import Order
from talkies.engine.port.failure import as_talkies
from talkies.errors import WorkerDied
from talkies.kernels import select as kernels
from talkies.placement.components import Residency
from talkies.placement.ranks.peers import Peers


def main(connection: Connection) -> int:
    # Ctrl-C goes to the whole group; rank 0 decides what it means for us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_rank_0, args=(connection.fileno(),), name="rank-0-watch", daemon=True).start()
    peers: Peers | None = None
    try:
        told: Told = connection.recv()
        config = _own(told.config, told.rank)
        resolved = resolve(config)
        torch.set_num_threads(resolved.threads)
        connection.send(RankStarted())
        groups = join(told.rank, resolved.mesh, told.store, resolved.device, num_text=resolved.num_text)
        peers = groups.peers
        ops = kernels.create(resolved.kernels)
        attend = attention.create(resolved.attention, ops)
        cap(resolved.device, config.vram_budget)
        residency, checkpoint = Residency(), checkpoint_of(config)
        dits = build_dits(
            checkpoint.parts,
            resolved,
            told.placement,
            residency,
            ops=ops,
            attend=attend,
            loading=LoadReport(resolved.device),
            groups=groups,
            num_forwards=checkpoint.limits.default_num_sigmas - 1,
            adapters=checkpoint.adapters,
        )
        text: TextEncoder | None = None
        if groups.text is not None:
            text = build_text(checkpoint.parts, resolved, told.placement, residency, ops=ops, groups=groups)
        connection.send(Loaded())
        follower = Follower(dits, residency, attend, groups, resolved.device, text)
        while (order := _order(connection)) is not None:
            follower.obey(order)
    except (WorkerDied, EOFError, BrokenPipeError, ConnectionResetError):
        return 1  # another rank's failure, which has been told; or rank 0 is gone, and nobody listens
    except Exception as error:
        if peers is not None:
            peers.fail(error)
        traceback.print_exc()
        _say(connection, as_talkies(error))
        return 1
    return 0


def _leave_with_rank_0(pipe: int) -> None:
    """Ends this process when rank 0 has closed the pipe or is gone, whatever else goes on here: a group that rank 0
    will never join would wait for minutes, and say so in a traceback."""
    poll = select.poll()
    poll.register(pipe, 0)  # no events but that the other end is closed
    poll.poll()
    os._exit(0)


def _own(config: EngineConfig, rank: int) -> EngineConfig:
    """The same on this rank's device."""
    on_gpu = resolve(config).device.type == "cuda"
    return replace(config, device=f"cuda:{rank}") if on_gpu else config


def _order(connection: Connection) -> Order | None:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None  # rank 0 has closed, or is gone


def _say(connection: Connection, message: Any) -> None:
    with suppress(OSError):
        connection.send(message)


if __name__ == "__main__":
    code = main(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(code)  # a collective that waits for a rank that is gone would keep the interpreter
