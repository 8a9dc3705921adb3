"""Two ranks, a GPU each (two processes on a CPU): what is measured and in which order. Started by ``bench.memory``.

    tp_fp8    tensor-parallel shards in e4m3: resident, streamed rank by rank, streamed in chunks
    tp_bf16   the same in bfloat16

Every part is compared with a resident forward of its precision on one GPU, which both ranks run for themselves. Parts
that no time is left for are left out, by both ranks together.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench.memory import shards
from bench.memory.rank import DTYPE, NEEDS_S, WORLD, Rank, Task
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import free
from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.placement.ranks.peers import Peers
from talkies.placement.stream.host_memory import raise_memlock

PARTS = ("tp_fp8", "tp_bf16")
TIMEOUT_S = 120  # of a collective


def measure(
    config: DiTConfig,
    shape: fw.Shape,
    device: torch.device,
    kernels: str,
    attention: str,
    parts: tuple[str, ...],
    limit_s: float,
) -> dict[str, float]:
    """The worst of both ranks by name; ``check both ranks ran to their end`` is 0 when one did not."""
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise ConfigError(f"unknown rank part {min(unknown)!r}", hint="use " + ", ".join(PARTS), param="--rank-parts")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    task = Task(port, parts, config, shape, device.type, kernels, attention, time.time() + limit_s)
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        results = manager.dict()
        ranks = [context.Process(target=_rank, args=(rank, task, results)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        ended = _wait(ranks, task.until + 30)
        found = [dict(results.get(rank, {})) for rank in range(WORLD)]
    names = [name for name in found[0] if name in found[1]]
    merged = {n: (min if n.startswith("check ") or n.endswith("_speedup") else max)(f[n] for f in found) for n in names}
    merged["check both ranks ran to their end"] = float(ended)
    return merged


def _wait(ranks: list[Any], until: float) -> bool:
    """Whether all ended well. One that failed takes the others with it: they may spin in a collective."""
    while time.time() < until and all(p.exitcode in (None, 0) for p in ranks) and any(p.is_alive() for p in ranks):
        time.sleep(0.1)
    ended = all(p.exitcode == 0 for p in ranks)
    if not ended:
        print(f"    ranks ended with {[p.exitcode for p in ranks]}, None: killed at the limit", flush=True)
        time.sleep(2)  # for their last words
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join()
    return ended


def _rank(rank: int, task: Task, results: MutableMapping[int, dict[str, float]]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(task.port))
    if task.device == "cpu":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
    device = torch.device(task.device, rank) if task.device == "cuda" else torch.device("cpu")
    if task.device == "cuda":
        torch.cuda.set_device(device)
    # Objects and barriers go through gloo: they must not enqueue anything on a device.
    backend = "cpu:gloo,cuda:nccl" if task.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=WORLD, timeout=timedelta(seconds=TIMEOUT_S))
    group = dist.group.WORLD
    assert group is not None
    peers = Peers(group)
    raise_memlock(1 << 40)
    try:
        with torch.inference_mode():
            source = RandomDiT(task.config, device, DTYPE)
            me = Rank(task, device, peers, source, fw.make_inputs(source, [task.shape], device, DTYPE))
            for part in (p for p in PARTS if p in task.parts):
                if not me.has_time(part):
                    if rank == 0:
                        print(f"    {part}: left out, no time is left for about {NEEDS_S[part]} s", flush=True)
                    continue
                began = time.monotonic()
                shards.part(me, part.removeprefix("tp_"))
                free(device)
                me.note(f"{part}_part_s", time.monotonic() - began)
                results[rank] = dict(me.found)
    except BaseException as error:
        peers.fail(error)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a collective that the other rank never joined would hold an orderly end
    me.together()
    peers.close()
    dist.destroy_process_group()
