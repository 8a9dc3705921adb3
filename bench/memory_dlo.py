"""Two ranks of the distributed layerwise offload: started by ``bench.memory``."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, free
from talkies.model.config import DiTConfig
from talkies.placement import distributed_layerwise as dlo
from talkies.placement.footprint import block_bytes
from talkies.placement.host import check_shm
from talkies.placement.quantize import QuantizeConfig

WORLD = 2


def measure(config: DiTConfig, shape: fw.Shape, device: torch.device, kernels: str, attention: str) -> dict[str, float]:
    """Raises ``ConfigError`` when /dev/shm is too small."""
    check_shm(sum(block_bytes(config, QuantizeConfig(), 2)))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        results = manager.dict()
        arguments = (port, config, shape, device.type, kernels, attention, results)
        mp.spawn(_rank, args=arguments, nprocs=WORLD, join=True)
        found = [dict(results[rank]) for rank in range(WORLD)]
    merged = {name: max(f[name] for f in found) for name in found[0] if not name.startswith("check ")}
    merged |= {name: min(f[name] for f in found) for name in found[0] if name.startswith("check ")}
    if device.type == "cuda":
        merged["check dlo within 1.03 of resident"] = float(merged["dlo2_s"] <= 1.03 * merged["dlo2_resident_s"])
    return merged


def _rank(
    rank: int, port: int, config: DiTConfig, shape: fw.Shape, kind: str, kernels: str, attention: str, results: dict
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if kind == "cpu":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    group = dist.group.WORLD
    assert group is not None
    dtype = torch.bfloat16
    source = RandomDiT(config, device, dtype)
    found: dict[str, float] = {}
    with torch.inference_mode():
        inputs = fw.make_inputs(source, [shape], device, dtype)
        dit = fw.make_dit(source, device, dtype, attend=attention, kernels=kernels)
        step = fw.Step(dit, inputs)
        step()
        dist.barrier()
        resident = fw.measured(step, device, repeats=1)
        found |= {"dlo2_resident_s": resident.seconds, "dlo2_resident_peak_gib": resident.peak.gib}
        _say(rank, found)
        before = _shmem_bytes()
        shared = dlo.SharedBlocks(group, pin=kind == "cuda")
        blocks = list(dit.blocks)
        for index, block in enumerate(blocks):
            shared.settle(index, block)
        shared.publish()
        free(device)
        whole = sum(buffer.flat.numel() for buffer in shared.buffers.values())
        dist.barrier()
        if before is not None:
            found["host_copies"] = (_shmem_bytes() - before) / whole
        found["dlo2_host_gib"] = whole / GIB
        streamed = dlo.stream_shared(blocks, shared, range(len(blocks)), group, device)
        for block in dit.token_refiner.blocks:
            block.to("cpu")
        step()
        dist.barrier()
        gathered = fw.measured(step, device, repeats=1)
        found |= {"dlo2_s": gathered.seconds, "dlo2_peak_gib": gathered.peak.gib}
        equal = all(torch.equal(a, b) for a, b in zip(gathered.outputs, resident.outputs, strict=True))
        found["check dlo of two ranks bit-equal to resident"] = float(equal)
        _say(rank, found)
        dist.barrier()
        streamed.close()
    results[rank] = found
    dist.destroy_process_group()


def _shmem_bytes() -> int | None:
    """Shared memory of the whole machine: a second copy would show."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))
    except (OSError, StopIteration):
        return None


def _say(rank: int, found: dict[str, float]) -> None:
    if rank == 0:
        print("  rank 0: " + ", ".join(f"{k} {v:.6g}" for k, v in found.items()), flush=True)
