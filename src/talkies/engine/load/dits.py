"""The DiTs of one checkpoint on one device: whole, or one rank's share of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from talkies.attention import registry as attention
from talkies.attention.base import Trimmed
from talkies.engine.config import ResolvedConfig
from talkies.engine.load.load_report import LoadReport
from talkies.engine.load.place_components import place_dit
from talkies.engine.load.planning import Placement
from talkies.engine.load.tables import Tables, tables_bytes
from talkies.h3.partitions import Parts
from talkies.kernels.select import Ops
from talkies.model.dit import PackedDiT
from talkies.model.runner import Runner
from talkies.model.weights import DiTReader
from talkies.placement.apply import attend_of, runner_of
from talkies.placement.components import Residency
from talkies.placement.graphs.replay import Graphs
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks


@dataclass(frozen=True, kw_only=True)
class DiTs:
    """By partition. ``runners`` are what a step has run of each; ``readers`` hand out AdaLN projections, which no DiT
    keeps, to ``tables``."""

    by_partition: dict[str, PackedDiT]
    runners: dict[str, Runner]
    readers: dict[str, DiTReader]
    tables: Tables


def build_dits(
    parts: Parts,
    resolved: ResolvedConfig,
    placement: Placement,
    residency: Residency,
    *,
    ops: Ops,
    attend: Trimmed,
    loading: LoadReport,
    num_forwards: int,
    groups: RankGroups | None = None,
    graphs: Graphs | None = None,
    on_stage: Callable[[str], object] = lambda stage: None,
) -> DiTs:
    """Reads and places every partition; with ``groups`` each rank its share. ``num_forwards``: of a default schedule.

    Raises ``CheckpointError``, and ``ConfigError`` for an attention that ranks cannot share rows in.
    """
    # The prompt's few rows pass the refiner once a request: never approximated, and no plan made for their number.
    text_attend = attention.create("sdpa")
    attend_here = attend_of(attend, groups)
    by_partition: dict[str, PackedDiT] = {}
    readers: dict[str, DiTReader] = {}
    for partition, folder in parts.transformers.items():
        on_stage(f"weights of {partition}")
        with loading.part(f"DiT {partition}") as part:
            # Where a tensor lies decides the last bits of a CPU's products; on the way to a GPU it is a copy more.
            reader = DiTReader(folder, dtype=resolved.dtype, align=resolved.device.type == "cpu")
            shard = None if groups is None else Shard(rank=groups.place.tensor, degree=groups.mesh.tensor)
            source = reader if shard is None else ShardedTensors(reader, shard)
            dit = place_dit(
                source,
                resolved.device,
                residency,
                group=f"dit.{partition}",
                attend=attend_here,
                text_attend=text_attend,
                ops=ops,
                quantize=resolved.quantize,
                layerwise=placement.residences.dit,
            )
            if groups is not None:
                join_ranks(dit, groups)
            part.num_bytes = reader.files.bytes_asked
        dit.use_chunking(placement.chunking)
        by_partition[partition], readers[partition] = dit, reader
    config = next(iter(by_partition.values())).config
    return DiTs(
        by_partition=by_partition,
        runners={name: runner_of(dit, graphs=graphs, groups=groups) for name, dit in by_partition.items()},
        readers=readers,
        tables=Tables(readers, residency, resolved.device, loading, tables_bytes(config, num_forwards, resolved.dtype)),
    )
