"""Tensor-parallel shards on two ranks: resident, streamed by each rank for itself, and streamed in chunks."""

from __future__ import annotations

from bench.memory.curve import Step, predicted_peak
from bench.memory.rank import QUANTIZE, WORLD, Rank, equal
from talkies.benchmarks import forward as fw
from talkies.benchmarks.timing import GIB, free
from talkies.model.chunking import WHOLE, Chunking
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks
from talkies.placement.stream.layerwise import LayerwiseConfig, stream

# Two ranks round twice where one rounds once, and in fp8 quantise other slices: the distance of two ways to compute
# the same, over 50 blocks of random weights. A wrong shard is at 1.
MOST_APART = {"bf16": 0.06, "fp8": 0.25}
CHUNKING = Chunking(mlp_rows=8192, head_groups=2)


def part(me: Rank, precision: str) -> None:
    name = "tp2_fp8" if precision == "fp8" else "tp2"
    dit, one = me.one_rank(precision)
    del dit
    free(me.device)
    me.note(f"{name}_one_rank_s", one.seconds)
    me.note(f"{name}_one_rank_peak_gib", one.peak.gib)

    shard = Shard(rank=me.peers.rank, degree=WORLD)
    dit = me.make(ShardedTensors(me.source, shard), precision)
    join_ranks(dit, RankGroups(Mesh(tensor=WORLD), me.peers))
    step = me.step(dit)
    resident = me.measured(step)
    # What computes something else has no speed: each figure comes after the check of the outputs it timed.
    apart = fw.relative(resident.outputs, one.outputs)
    me.note(f"{name}_rel", apart)
    close = me.check(f"{name}: close to one rank", apart < MOST_APART[precision])
    same = me.check(f"{name}: ranks agree bit for bit", me.same_on_all(resident.outputs))
    if close and same:
        _note(me, name, resident)
        me.note(f"{name}_speedup", one.seconds / resident.seconds)
    _plan(me, name, precision, step, LayerwiseConfig(resident=len(dit.blocks)), WHOLE)

    streamed = stream(list(dit.blocks), me.device, LayerwiseConfig())
    assert streamed is not None
    free(me.device)
    me.note(f"{name}_host_gib", streamed.host_bytes / GIB)
    found = me.measured(step)
    if me.check(f"{name}_streamed: bit-equal to resident", equal(found, resident)):
        _note(me, f"{name}_streamed", found)
    _plan(me, f"{name}_streamed", precision, step, LayerwiseConfig(), WHOLE)
    if me.on_gpu:
        me.check(f"{name}: streamed within 1.02 of resident", found.seconds <= 1.02 * resident.seconds)

    dit.use_chunking(CHUNKING)
    free(me.device)
    found = me.measured(step)
    apart = fw.relative(found.outputs, one.outputs)
    if me.check(f"{name}_streamed_chunked: close to one rank", apart < MOST_APART[precision]):
        _note(me, f"{name}_streamed_chunked", found)
    _plan(me, f"{name}_streamed_chunked", precision, step, LayerwiseConfig(), CHUNKING)
    dit.use_chunking(WHOLE)
    me.together()
    streamed.close()


def _note(me: Rank, name: str, found: fw.Measured) -> None:
    me.note(f"{name}_s", found.seconds)
    me.note(f"{name}_peak_gib", found.peak.gib)
    me.note(f"{name}_card_gib", me.card_gib())


def _plan(me: Rank, name: str, precision: str, step: Step, layerwise: LayerwiseConfig, chunking: Chunking) -> None:
    # The same formulas with a shard's sizes.
    planned = predicted_peak(step.dit.config, step, QUANTIZE[precision], layerwise, chunking, me.task.attention)
    me.note(f"{name}_plan_peak_gib", planned / GIB)
