"""Modulation tables of one engine, on one rank: made from AdaLN projections that are read for it, and kept a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch

from talkies.adapters.fuse import FusedTensors
from talkies.engine.load.adapt import AdaptedDiT, Adapters
from talkies.engine.load.load_report import LoadReport
from talkies.h3.config import DiTConfig
from talkies.h3.timesteps import StepPlan
from talkies.model.modulation import ModulationTable, build_table
from talkies.model.weights import DiTReader
from talkies.placement.components import Residency
from talkies.placement.modulation_feed import pinned
from talkies.sampling.schedule import DualSchedule

MAX_TABLES = 8  # schedules of the default length whose modulation is kept; a released one is 0.5 GB


def tables_bytes(config: DiTConfig, num_forwards: int, dtype: torch.dtype) -> int:
    """Of all tables that are kept, where a default schedule has so many forwards: long ones leave room for fewer."""
    params = 3 * config.num_layers * 6 + 2 * 2  # of a forward: three entries in the blocks, two in the output norm
    return MAX_TABLES * num_forwards * params * config.hidden_size * dtype.itemsize


class Tables:
    """``readers`` hand out AdaLN projections of each partition, one block at a time; those of ``adapted`` also with
    other adapters in them; ``max_bytes`` are kept."""

    def __init__(
        self,
        readers: Mapping[str, DiTReader | FusedTensors],
        adapted: Mapping[str, AdaptedDiT],
        residency: Residency,
        device: torch.device,
        loading: LoadReport,
        max_bytes: int,
    ) -> None:
        self.readers, self.max_bytes = readers, max_bytes
        self._adapted = adapted
        self._residency, self._device, self._loading = residency, device, loading
        self._tables: OrderedDict[object, ModulationTable] = OrderedDict()

    def of(
        self, partition: str, schedule: DualSchedule, steps: Sequence[StepPlan], adapters: Adapters = ()
    ) -> ModulationTable:
        """The table of a schedule with ``adapters`` in the weights that covers ``steps``; made once, kept for the next
        request with the same ones."""
        key = (partition, schedule.key, adapters)
        known = self._tables.get(key)
        if known is not None and known.covers(steps):
            self._tables.move_to_end(key)
            return known.rebind(steps)
        # Other rows (a keyframe's, say) add pairs to the same schedule; the larger table serves both.
        self._residency.release()  # one AdaLN matrix is as large as a block
        adapted = self._adapted.get(partition)
        reader = self.readers[partition] if adapted is None else adapted.source(adapters)
        with self._loading.part(f"AdaLN of {partition}") as part:
            before = reader.files.bytes_asked
            table = build_table(reader, steps, self._device)
            if self._device.type == "cuda":
                table = pinned(table)
            part.num_bytes = reader.files.bytes_asked - before
        self._tables[key] = table
        while len(self._tables) > 1 and sum(t.num_bytes for t in self._tables.values()) > self.max_bytes:
            self._tables.popitem(last=False)
        return table
