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
from talkies.h3.partitions import Parts
from talkies.kernels.select import Ops
from talkies.model.dit import PackedDiT
from talkies.model.weights import DiTReader
from talkies.placement.components import Residency
from talkies.placement.ranks.peers import Peers
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks


@dataclass(frozen=True, kw_only=True)
class DiTs:
    """By partition. ``readers`` hand out AdaLN projections, which no DiT keeps."""

    by_partition: dict[str, PackedDiT]
    readers: dict[str, DiTReader]


def build_dits(
    parts: Parts,
    resolved: ResolvedConfig,
    placement: Placement,
    residency: Residency,
    *,
    ops: Ops,
    attend: Trimmed,
    loading: LoadReport,
    peers: Peers | None = None,
    on_stage: Callable[[str], object] = lambda stage: None,
) -> DiTs:
    """Reads and places every partition; with ``peers`` each rank its share. Raises ``CheckpointError``."""
    # The prompt's few rows pass the refiner once a request: never approximated, and no plan made for their number.
    text_attend = attention.create("sdpa")
    found = DiTs(by_partition={}, readers={})
    for partition, folder in parts.transformers.items():
        on_stage(f"weights of {partition}")
        with loading.part(f"DiT {partition}") as part:
            # Where a tensor lies decides the last bits of a CPU's products; on the way to a GPU it is a copy more.
            reader = DiTReader(folder, dtype=resolved.dtype, align=resolved.device.type == "cpu")
            source = reader if peers is None else ShardedTensors(reader, Shard(rank=peers.rank, degree=peers.world))
            dit = place_dit(
                source,
                resolved.device,
                residency,
                group=f"dit.{partition}",
                attend=attend,
                text_attend=text_attend,
                ops=ops,
                quantize=resolved.quantize,
                layerwise=placement.residences.dit,
            )
            if peers is not None:
                join_ranks(dit, peers)
            part.num_bytes = reader.files.bytes_asked
        dit.use_chunking(placement.chunking)
        found.by_partition[partition], found.readers[partition] = dit, reader
    return found
