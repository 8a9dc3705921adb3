"""One rank decides, the others follow: a DiT whose blocks are cut over ranks, driven from one process.

What a request is, when it steps and when it ends is known to rank 0 alone. Before it runs blocks it says which, and
gives the others the rows, the modulation and the rotary table; then all run the same blocks and meet in their sums
(``tensor_parallel``). Orders go through a pipe, so an idle rank waits for as long as it takes and sees the end of its
leader; tensors go through the group.

S rows, L text rows, D hidden, A rotary angles, E entries, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from talkies.attention.base import Documents
from talkies.errors import WorkerDied
from talkies.kernels.runs import RowRuns
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation
from talkies.model.runner import BlockRunner, TextRefiner
from talkies.placement.ranks.peers import Peers

KEPT = 64  # documents, and runs of modulation entries, of requests that take turns
Bounds = tuple[tuple[int, ...], int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Refine:
    """``refine_text`` of ``partition`` over states [L, text_dim]."""

    partition: str
    states: tuple[torch.Size, torch.dtype]
    documents: Bounds | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """``run_blocks`` of ``partition`` over rows [S, D], params [E, B, 6, D] and a rotary table of [S, A] twice."""

    partition: str
    start: int
    stop: int | None
    rows: tuple[torch.Size, torch.dtype]
    params: tuple[torch.Size, torch.dtype]
    table: tuple[torch.Size, torch.dtype]
    runs: tuple[tuple[int, ...], tuple[int, ...]]
    documents: Bounds | None


Order = Refine | Blocks


class Leader:
    """Rank 0's side. ``tell`` sends an order to every other rank."""

    def __init__(self, peers: Peers, tell: Callable[[Order], None]) -> None:
        self._peers, self._tell = peers, tell
        self.failure: str | None = None  # what ended the ranks: they cannot be led any more
        self.busy = False  # inside something that all ranks run

    def lead(
        self, partition: str, dtype: torch.dtype, run: BlockRunner, refine: TextRefiner
    ) -> tuple[BlockRunner, TextRefiner]:
        """What runs ``run`` and ``refine`` of ``partition`` on this rank and has all others run theirs.

        ``dtype`` is that of the DiT's rows.
        """

        def refine_text(states_LT: Tensor, documents: Documents | None = None) -> Tensor:
            states_LT = states_LT.to(dtype).contiguous()
            order = Refine(partition, _kind(states_LT), _bounds(documents))
            return self._together(order, (states_LT,), lambda: refine(states_LT, documents))

        def run_blocks(
            x_SD: Tensor, view: RowView, modulation: StepModulation, start: int = 0, stop: int | None = None
        ) -> Tensor:
            given = tuple(t.contiguous() for t in (x_SD, modulation.params, view.cos_SA, view.sin_SA))
            order = Blocks(
                partition=partition,
                start=start,
                stop=stop,
                rows=_kind(given[0]),
                params=_kind(given[1]),
                table=_kind(given[2]),
                runs=(modulation.runs.bounds, modulation.runs.entries),
                documents=_bounds(view.documents),
            )
            return self._together(order, given, lambda: run(x_SD, view, modulation, start, stop))

        return run_blocks, refine_text

    def _together(self, order: Order, given: tuple[Tensor, ...], run: Callable[[], Tensor]) -> Tensor:
        if self.failure is not None:
            raise WorkerDied(f"the ranks of this engine ended: {self.failure}", hint="open the engine again")
        self.busy = True
        try:
            self._peers.check()
            self._tell(order)
            for tensor in given:
                _share(tensor, self._peers)
            return run()
        except BaseException as error:
            # The others stand in the middle of a block and wait for sums that will not come.
            self.failure = str(error) or type(error).__name__
            self._peers.fail(error)
            raise
        finally:
            self.busy = False


def follow(
    dits: Mapping[str, PackedDiT],
    peers: Peers,
    device: torch.device,
    receive: Callable[[], Order | None],
    enter: Callable[[str], object] = lambda group: None,
) -> None:
    """The side of every other rank: runs what it is told until ``receive`` gives ``None``.

    ``enter`` is told which weights are needed (``dit.<partition>``, or its ``.refiner``). Raises what a block raises,
    and ``WorkerDied`` where another rank failed.
    """
    # What is made of them on the device is made once a request, so those that came before are kept.
    documents_of = lru_cache(KEPT)(lambda bounds: Documents(*bounds))
    runs_of = lru_cache(KEPT)(lambda runs: RowRuns(*runs))
    while (order := receive()) is not None:
        with torch.inference_mode():
            dit = dits[order.partition]
            documents = None if order.documents is None else documents_of(order.documents)

            def taken(kind: tuple[torch.Size, torch.dtype]) -> Tensor:
                tensor = torch.empty(kind[0], dtype=kind[1], device=device)
                _share(tensor, peers)
                return tensor

            if isinstance(order, Refine):
                enter(f"dit.{order.partition}.refiner")
                dit.refine_text(taken(order.states), documents)
                continue
            enter(f"dit.{order.partition}")
            x_SD, params = taken(order.rows), taken(order.params)
            view = RowView(taken(order.table), taken(order.table), documents)
            runs = runs_of(order.runs)
            modulation = StepModulation(params, runs, params.new_empty(0), runs)
            dit.run_blocks(x_SD, view, modulation, order.start, order.stop)


def _share(tensor: Tensor, peers: Peers) -> None:
    """Rank 0's values become everybody's."""
    peers.together("rows were given", lambda: dist.broadcast(tensor, group_src=0, group=peers.group))


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _bounds(documents: Documents | None) -> Bounds | None:
    return None if documents is None else (documents.cu_seqlens, documents.num_rows, documents.exact)
