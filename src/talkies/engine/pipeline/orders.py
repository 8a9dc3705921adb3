"""What rank 0 tells the others, and how all of them see that they still do the same.

Every rank holds the state of every request that is being denoised and does the same step itself: an order says which
requests step, not what to compute. A request's state crosses once, before its first step (``Prepare``); from then on
only what attention and the gathered velocities need crosses. Co-batched, interleaved and resumed requests are nothing
special: they are the same orders.

Before a step all ranks compare what they are about to do and one number that follows from all rows so far. Ranks that
drifted apart end the request by name there, where otherwise one would wait for a collective that the other never joins.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from talkies.codecs.text.encoder import TextEncoder
from talkies.codecs.text.presentation import Presentation
from talkies.engine.load.adapt import Adapters
from talkies.engine.pipeline.state import RequestState
from talkies.errors import WorkerDied
from talkies.h3.geometry import Geometry
from talkies.h3.packing import PackedLayout
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.leader import Kind, Leader, kind_of
from talkies.quality import CachePolicy
from talkies.request import Task, VideoRequest
from talkies.sampling.schedule import DualSchedule

T = TypeVar("T")
GIVEN = ("refined_text", "video_rows", "audio_rows", "anchors.video_rows", "anchors.audio_rows", "locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """A request that will step: all that its state is made of, the tensors of ``GIVEN`` apart, which follow."""

    number: int
    request: VideoRequest
    task: Task
    partition: str
    adapters: Adapters
    seed: int
    geometry: Geometry
    layout: PackedLayout
    video_sigmas: tuple[float, ...]
    audio_sigmas: tuple[float, ...]
    step: int
    cache: CachePolicy
    tensors: tuple[Kind, ...]
    cache_tensors: tuple[str, ...] = ()  # names of the last of them: of a step cache that goes on from a file

    @property
    def schedule(self) -> DualSchedule:
        return DualSchedule(torch.tensor(self.video_sigmas), torch.tensor(self.audio_sigmas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward of these requests, together."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """These requests are over."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """``refine_text`` of ``partition`` with these adapters over states [L, text_dim], which follow: where the refiner
    is cut over ranks."""

    partition: str
    adapters: Adapters
    states: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """The text encoder over these tokens and patch rows, which follow: where it is cut over ranks."""

    presentation: Presentation
    images: Kind
    videos: Kind


Order = Prepare | Step | Drop | Refine | Encode


def lead_encode(
    leader: Leader, encoder: TextEncoder, presentation: Presentation, images: Tensor, videos: Tensor
) -> Tensor:
    """``encoder.run`` on this rank and on the others that have a share of it."""
    order = Encode(presentation=presentation, images=kind_of(images), videos=kind_of(videos))
    return leader.together(order, (images, videos), lambda: encoder.run(presentation, images, videos))


def lead_refine(
    leader: Leader, partition: str, adapters: Adapters, states_LT: Tensor, run: Callable[[Tensor], Tensor]
) -> Tensor:
    """``run(states)`` on this rank, and on the others where the refiner is cut over ranks."""
    if leader.groups.mesh.tensor == 1:
        return run(states_LT)
    order = Refine(partition=partition, adapters=adapters, states=kind_of(states_LT))
    return leader.together(order, (states_LT,), lambda: run(states_LT))


def lead_step(leader: Leader, states: Sequence[RequestState], run: Callable[[], T]) -> T:
    """``run()``, the step of ``states``, on this rank while all others do it, too."""
    drop_ended(leader)
    numbers = []
    for state in states:
        number, new = leader.number(state)
        numbers.append(number)
        if new:
            own, cache = tensors_of(state), state.cache_tensors()
            tensors = [*own, *(tensor.to(state.video_rows.device) for tensor in cache.values())]
            leader.together(_prepare(number, state, tensors, tuple(cache)), tensors, lambda: None)

    def checked() -> T:
        check_agreement(leader.groups, numbers, states)
        return run()

    return leader.together(Step(numbers=tuple(numbers)), (), checked)


def drop_ended(leader: Leader) -> None:
    """Tells the others which requests are over, if any."""
    gone = leader.forgotten()
    if gone and leader.failure is None:
        leader.together(Drop(numbers=gone), (), lambda: None)


def check_agreement(groups: RankGroups, numbers: Sequence[int], states: Sequence[RequestState]) -> None:
    """All ranks are about to do the same step to the same rows. Collective; raises ``WorkerDied`` on all of them where
    one is not."""
    found = groups.agree((_hash_of(numbers, states), _number_of(states)), "ranks compared their work")
    for what, column in (("its order", 0), ("its rows", 1)):
        others = [rank for rank, row in enumerate(found) if row[column] != found[0][column]]
        if others:
            named = ", ".join(map(str, others))
            raise WorkerDied(
                f"rank {named} drifted from rank 0 before forward {states[0].step + 1}: {what} differ",
                hint="the ranks are started anew; should it come again, compare their devices and versions",
            )


def tensors_of(state: RequestState) -> tuple[Tensor, ...]:
    """Those of ``GIVEN``."""
    anchors = state.anchors
    own = state.refined_text, state.video_rows, state.audio_rows, anchors.video_rows, anchors.audio_rows
    return *own, *state.locks.tensors()


def _prepare(number: int, state: RequestState, tensors: Sequence[Tensor], cache: tuple[str, ...]) -> Prepare:
    return Prepare(
        number=number,
        request=state.request,
        task=state.task,
        partition=state.partition,
        adapters=state.adapters,
        seed=state.seed,
        geometry=state.geometry,
        layout=replace(state.layout),  # a new one: what was made of this one on a device stays here
        video_sigmas=tuple(state.schedule.video_sigmas.tolist()),
        audio_sigmas=tuple(state.schedule.audio_sigmas.tolist()),
        step=state.step,
        tensors=tuple(map(kind_of, tensors)),
        cache=state.cache,
        cache_tensors=cache,
    )


def _hash_of(numbers: Sequence[int], states: Sequence[RequestState]) -> int:
    """63 bits of what is to be run."""
    said = [
        (n, s.partition, s.adapters, s.seed, s.step, s.num_forwards, s.num_rows)
        for n, s in zip(numbers, states, strict=True)
    ]
    return int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "big") >> 1


def _number_of(states: Sequence[RequestState]) -> int:
    """The sum of all rows, as its bits: equal rows in equal order have equal sums."""
    sums = [rows.sum(dtype=torch.float64) for state in states for rows in (state.video_rows, state.audio_rows)]
    return int(struct.unpack("<q", struct.pack("<d", float(torch.stack(sums).sum())))[0])
