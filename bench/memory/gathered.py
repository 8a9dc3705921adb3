"""The distributed layerwise offload on two ranks: one host copy, slices gathered, against resident."""

from __future__ import annotations

import torch.distributed as dist

from bench.memory.rank import QUANTIZE, Rank, equal
from talkies.benchmarks.timing import GIB, free
from talkies.capacity.weight_bytes import block_bytes
from talkies.placement.ranks import gathered as dlo
from talkies.placement.stream.host_memory import check_shm


def part(me: Rank, precision: str) -> None:
    name = "dlo2_fp8" if precision == "fp8" else "dlo2"
    check_shm(sum(block_bytes(me.task.config, QUANTIZE[precision], 2)))
    dit, resident = me.one_rank(precision)
    if dit is None:
        dit = me.make(me.source, precision)
    me.note(f"{name}_resident_s", resident.seconds)
    me.note(f"{name}_resident_peak_gib", resident.peak.gib)
    step = me.step(dit)
    before = _shmem_bytes()
    me.together()  # both have read it
    shared = dlo.SharedBlocks(me.peers, pin=me.on_gpu)
    blocks = list(dit.blocks)
    for index, block in enumerate(blocks):
        shared.settle(index, block)
    shared.publish()
    free(me.device)
    whole = sum(buffer.flat.numel() for buffer in shared.buffers.values())
    me.together()
    after = _shmem_bytes()
    if before is not None and after is not None:
        copies = (after - before) / whole
        me.note("host_copies" if precision == "bf16" else "host_copies_fp8", copies)
        if me.on_gpu:  # tiny blocks drown in what else the machine does
            me.check(f"{name}: one host copy", 0.95 < copies < 1.05)
    me.note(f"{name}_host_gib", whole / GIB)
    streamed = dlo.stream_shared(blocks, shared, range(len(blocks)), me.device)
    gathered = me.measured(step)
    me.note(f"{name}_s", gathered.seconds)
    me.note(f"{name}_peak_gib", gathered.peak.gib)
    me.note(f"{name}_card_gib", me.card_gib())
    me.check(f"{name}: bit-equal to resident", equal(gathered, resident))
    if me.on_gpu:
        me.check(f"{name}: within 1.03 of resident", gathered.seconds <= 1.03 * resident.seconds)
    me.together()
    streamed.close()
    dist.barrier()  # the next part's shared memory is not this one's


def _shmem_bytes() -> int | None:
    """Shared memory of the whole machine: a second copy would show."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))
    except (OSError, StopIteration):
        return None
