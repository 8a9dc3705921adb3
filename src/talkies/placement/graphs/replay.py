"""The blocks of a small forward as one CUDA graph: one launch where eager work takes a dozen a block.

A block costs the host about 1.2 ms of launching whatever its size (two blocks and what surrounds them: 3.06 ms on an
H200's host), so a small forward waits for its launches. A graph is recorded for exact shapes, the second time that they
come: the first time, in the ordinary way, compiles kernels and makes plans. Replaying runs the same kernels on the same
values, so results are equal bit for bit.

Why exact shapes and no padded buckets: attention may see valid rows only, every row's cost is real, and all steps of a
request have one shape. What differs between requests of one shape (rows, modulation, rotary tables) is copied in.

Not replayed, run as ever: large forwards, blocks with hooks (streamed weights: a graph would leave their transfers
out), attention backends that were not tried in a graph, whatever could not be recorded.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from talkies.attention.base import Documents
from talkies.attention.registry import can_be_recorded
from talkies.h3.config import DiTConfig
from talkies.kernels.runs import RowRuns
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation
from talkies.model.runner import BlockRunner
from talkies.placement.graphs.recorder import Recorder, Recording
from talkies.placement.graphs.weight_addresses import WeightAddresses

log = logging.getLogger(__name__)

# Work of a block from which on launching hides behind it: 2.9 ms at an H200's 690 TFLOP/s, over twice the launching.
MAX_BLOCK_FLOP = 2e12
MAX_GRAPHS = 16
SEEN_PER_GRAPH = 4  # shapes that are remembered without a graph: a stream of odd sizes must not push the graphs out
MAX_BYTES = 256 << 20  # of all graphs of a worker: shared activations, and inputs of each


def block_flop(config: DiTConfig, document_lengths: tuple[int, ...]) -> float:
    """Of the products and the attention of one block."""
    d, inner, ffn = config.hidden_size, config.inner_dim, config.ffn_dim
    products = 2 * sum(document_lengths) * (4 * d * inner + 3 * d * ffn)
    return float(products + 4 * inner * sum(rows * rows for rows in document_lengths))


def is_small(config: DiTConfig, document_lengths: tuple[int, ...]) -> bool:
    """Whether a forward over documents of these lengths is bound by its launches."""
    return block_flop(config, document_lengths) <= MAX_BLOCK_FLOP


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Where a graph finds what changes between two of its runs."""

    x_SD: Tensor
    view: RowView
    modulation: StepModulation

    @classmethod
    @torch.inference_mode(False)  # what is made inside it could not be written outside
    def like(cls, x_SD: Tensor, view: RowView, modulation: StepModulation, seen: _Seen) -> _Inputs:
        """Of the same shapes, not filled."""
        cos, sin = torch.empty_like(view.cos_SA), torch.empty_like(view.sin_SA)
        params = torch.empty_like(modulation.params)
        return cls(
            torch.empty_like(x_SD),
            RowView(cos, sin, seen.documents),
            replace(modulation, params=params, runs=seen.runs),
        )

    def fill(self, x_SD: Tensor, view: RowView, modulation: StepModulation) -> None:
        torch._foreach_copy_(self.tensors, [x_SD, modulation.params, view.cos_SA, view.sin_SA])  # one launch

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x_SD, self.modulation.params, self.view.cos_SA, self.view.sin_SA]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(slots=True)
class _Seen:
    """Shapes that came once, eagerly, with the objects whose device tensors were made then."""

    documents: Documents | None
    runs: RowRuns
    refused: bool = False  # they stay eager


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: _Inputs
    recording: Recording

    def __call__(self, x_SD: Tensor, view: RowView, modulation: StepModulation) -> Tensor:
        self.inputs.fill(x_SD, view, modulation)
        self.recording.replay()
        return self.inputs.x_SD.clone()  # the caller keeps it; the next run overwrites ours


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of ``run``, which runs the blocks of ``dit``."""

    run: BlockRunner
    dit: PackedDiT
    x_SD: Tensor
    view: RowView
    modulation: StepModulation
    start: int
    stop: int | None

    @property
    def key(self) -> Hashable:
        """Equal for calls that launch the same kernels with the same arguments, but for what ``_Inputs`` holds."""
        x, view, m = self.x_SD, self.view, self.modulation
        return (
            (self.dit, self.dit.attend, self.dit.chunking, self.start, self.stop),
            (x.shape, x.dtype, view.cos_SA.shape, view.cos_SA.dtype, view.documents),
            (m.params.shape, m.params.dtype, m.runs),
        )

    def eager(self) -> Tensor:
        return self.run(self.x_SD, self.view, self.modulation, self.start, self.stop)

    def within(self, inputs: _Inputs) -> None:
        """The same on ``inputs``, whose ``x_SD`` becomes the result."""
        out_SD = self.run(inputs.x_SD, inputs.view, inputs.modulation, self.start, self.stop)
        # Not kept where it is: then all that was allocated on the way is free for the next recording.
        inputs.x_SD.copy_(out_SD)


class Graphs:
    """All graphs of a worker: the latest used stay, within ``max_graphs`` and ``max_bytes``."""

    def __init__(self, recorder: Recorder, *, max_graphs: int = MAX_GRAPHS, max_bytes: int = MAX_BYTES) -> None:
        self.max_graphs, self.max_bytes = max_graphs, max_bytes
        self.replays = 0
        self._recorder = recorder
        self._known: OrderedDict[Hashable, _Seen | _Graph] = OrderedDict()
        self._pool_bytes = 0  # of all recordings since the pool is this one; it does not shrink when a graph goes

    @property
    def num_graphs(self) -> int:
        return len(self._graphs())

    @property
    def held_bytes(self) -> int:
        return self._pool_bytes + sum(graph.inputs.num_bytes for graph in self._graphs())

    def forget(self) -> None:
        """Drops all graphs: the allocator may give their memory to others."""
        self._known.clear()
        self._renew()

    def run(self, call: _Call) -> Tensor:
        """Replays, records or runs eagerly. Returns a new [S, D]."""
        key = call.key
        known = self._known.get(key)
        if known is None:
            out_SD = call.eager()
            self._known[key] = _Seen(call.view.documents, call.modulation.runs)  # it ran: only now is it warm
            self._trim()
            return out_SD
        self._known.move_to_end(key)
        if isinstance(known, _Seen):
            graph = None if known.refused else self._record(key, known, call)
            if graph is None:
                return call.eager()
            known = graph
        self.replays += 1
        return known(call.x_SD, call.view, call.modulation)

    def _record(self, key: Hashable, seen: _Seen, call: _Call) -> _Graph | None:
        """``None`` where it cannot be, or would take too much memory; then it is not tried again."""
        num_rows = call.x_SD.shape[0]
        try:
            inputs = _Inputs.like(call.x_SD, call.view, call.modulation, seen)
            graph = _Graph(inputs, self._recorder.record(lambda: call.within(inputs)))
        except (RuntimeError, MemoryError) as error:  # a full device is a RuntimeError, too
            error.__traceback__ = None  # its frames hold the tensors of the recording
            log.warning("no CUDA graph for a forward of %d rows, which stays eager: %s", num_rows, error)
            self._refuse(key, seen)
            return None
        self._known[key] = graph
        self._pool_bytes += graph.recording.num_bytes
        self._trim()
        if self.held_bytes > self.max_bytes:
            limit = self.max_bytes >> 20
            log.warning("no CUDA graph for a forward of %d rows: graphs would hold over %d MiB", num_rows, limit)
            self._refuse(key, seen)
            return None
        log.debug("a CUDA graph for %d rows; %d hold %d bytes", num_rows, self.num_graphs, self.held_bytes)
        return graph

    def _refuse(self, key: Hashable, seen: _Seen) -> None:
        """All graphs go, since their pool shrinks for none of them; what was refused stays so."""
        seen.refused = True
        self._known[key] = seen
        refused = [(k, s) for k, s in self._known.items() if isinstance(s, _Seen) and s.refused]
        self.forget()
        self._known.update(refused)

    def _trim(self) -> None:
        while len(self._known) > SEEN_PER_GRAPH * self.max_graphs:
            self._known.popitem(last=False)
        while self.num_graphs > self.max_graphs:
            del self._known[next(key for key, known in self._known.items() if isinstance(known, _Graph))]
        if not self._graphs():
            self._renew()

    def _renew(self) -> None:
        self._pool_bytes = 0
        self._recorder.renew()

    def _graphs(self) -> list[_Graph]:
        return [known for known in self._known.values() if isinstance(known, _Graph)]


class GraphedBlocks:
    """The blocks of one DiT: small forwards of ``run`` through graphs, all others as they are."""

    def __init__(self, run: BlockRunner, dit: PackedDiT, graphs: Graphs) -> None:
        self._run, self._dit, self._graphs = run, dit, graphs
        self._watched = WeightAddresses(dit.blocks)
        self._addresses: tuple[int, ...] | None = None

    def __call__(
        self, x_SD: Tensor, view: RowView, modulation: StepModulation, start: int = 0, stop: int | None = None
    ) -> Tensor:
        """Returns a new [S, D]; ``x_SD`` is left as it was."""
        call = _Call(self._run, self._dit, x_SD, view, modulation, start, stop)
        return self._graphs.run(call) if self._may_replay(call) else call.eager()

    def _may_replay(self, call: _Call) -> bool:
        documents = call.view.documents
        lengths = (call.x_SD.shape[0],) if documents is None else tuple(b - a for a, b in documents)
        if not is_small(self._dit.config, lengths) or not can_be_recorded(self._dit.attend):
            return False
        if self._watched.root is not self._dit.blocks:
            self._watched = WeightAddresses(self._dit.blocks)
        addresses = self._watched.addresses()
        if addresses != self._addresses:
            # Weights are elsewhere, or come and go: the graphs would read where they were.
            if self._addresses is not None:
                self._graphs.forget()
            self._addresses = addresses
        return addresses is not None
