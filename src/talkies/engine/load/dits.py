"""The DiTs of one checkpoint on one device: whole, or one rank's share of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from talkies.adapters.fuse import FusedTensors
from talkies.adapters.route import Routed, changes_of
from talkies.attention import registry as attention
from talkies.attention.base import Trimmed
from talkies.engine.config import ResolvedConfig
from talkies.engine.load.adapt import AdaptedDiT
from talkies.engine.load.load_report import LoadReport
from talkies.engine.load.place_components import place_dit
from talkies.engine.load.planning import Placement
from talkies.engine.load.tables import Tables, tables_bytes
from talkies.h3.partitions import Parts
from talkies.kernels.select import Ops
from talkies.model.dit import PackedDiT
from talkies.model.runner import Runner
from talkies.model.weights import DiTReader, NamedTensors, read_config
from talkies.placement.apply import attend_of, runner_of
from talkies.placement.components import Residency
from talkies.placement.graphs.replay import Graphs
from talkies.placement.quantize import placer
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks


@dataclass(frozen=True, kw_only=True)
class DiTs:
    """By partition. ``runners`` are what a step has run of each; ``readers`` hand out AdaLN projections, which no DiT
    keeps, to ``tables``; ``adapted`` are those that adapters can change."""

    by_partition: dict[str, PackedDiT]
    runners: dict[str, Runner]
    readers: dict[str, DiTReader | FusedTensors]
    tables: Tables
    adapted: dict[str, AdaptedDiT]


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
    adapters: Sequence[Routed] = (),
) -> DiTs:
    """Reads and places every partition; with ``groups`` each rank its share. ``num_forwards``: of a default schedule.
    All files of adapters are checked before a weight is read.

    Raises ``CheckpointError``, and ``ConfigError`` for an attention that ranks cannot share rows in.
    """
    # The prompt's few rows pass the refiner once a request: never approximated, and no plan made for their number.
    text_attend = attention.create("sdpa")
    attend_here = attend_of(attend, groups)
    by_partition: dict[str, PackedDiT] = {}
    readers: dict[str, DiTReader | FusedTensors] = {}
    adapted: dict[str, AdaptedDiT] = {}
    with loading.checks(f"{len(adapters)} adapters" if adapters else None):
        applied = {p: changes_of(adapters, p, read_config(folder)) for p, folder in parts.transformers.items()}
    for partition, folder in parts.transformers.items():
        on_stage(f"weights of {partition}")
        with loading.part(f"DiT {partition}") as part:
            # Where a tensor lies decides the last bits of a CPU's products; on the way to a GPU it is a copy more.
            reader: DiTReader | FusedTensors = DiTReader(
                folder,
                dtype=None if applied[partition] else resolved.dtype,  # sums are of what is stored, and round once
                align=resolved.device.type == "cpu",
            )
            if applied[partition]:
                assert isinstance(reader, DiTReader)
                reader = FusedTensors(reader, applied[partition], dtype=resolved.dtype, device=resolved.device)
            shard = None if groups is None else Shard(rank=groups.place.tensor, degree=groups.mesh.tensor)

            def cut(source: NamedTensors, shard: Shard | None = shard) -> NamedTensors:
                return source if shard is None else ShardedTensors(source, shard)

            dit = place_dit(
                cut(reader),
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
            if isinstance(reader, FusedTensors):
                adapted[partition] = AdaptedDiT(
                    partition,
                    dit,
                    reader,
                    placer(resolved.quantize, dit.config, ops, resolved.device),
                    cut=cut,
                    leave=residency.release,
                    say=loading.line,
                )
        dit.use_chunking(placement.chunking)
        by_partition[partition], readers[partition] = dit, reader
    config = next(iter(by_partition.values())).config
    return DiTs(
        by_partition=by_partition,
        runners={name: runner_of(dit, graphs=graphs, groups=groups) for name, dit in by_partition.items()},
        readers=readers,
        tables=Tables(
            readers, adapted, residency, resolved.device, loading, tables_bytes(config, num_forwards, resolved.dtype)
        ),
        adapted=adapted,
    )
