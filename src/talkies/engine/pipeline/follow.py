"""The side of every rank but the first: it holds a copy of each request's state and does what it is told to it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from talkies.attention.base import Trimmed
from talkies.codecs.text.encoder import TextEncoder
from talkies.engine.load.adapt import Adapters, use_adapters
from talkies.engine.load.dits import DiTs
from talkies.engine.pipeline.forward.group import StepGroup
from talkies.engine.pipeline.orders import Drop, Encode, Order, Prepare, Refine, Step, check_agreement
from talkies.engine.pipeline.state import RequestState, plans_of, state_of
from talkies.engine.pipeline.step import own_step
from talkies.model.dit import PackedDiT
from talkies.model.runner import Runner
from talkies.placement.components import Residency
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.leader import taken
from talkies.sampling.anchors import Anchors
from talkies.sampling.locks import Locks


class Follower:
    """What a step needs of an engine (``step.Denoiser``), and the requests that rank 0 has told of."""

    leader = None

    def __init__(
        self,
        dits: DiTs,
        residency: Residency,
        attend: Trimmed,
        groups: RankGroups,
        device: torch.device,
        text: TextEncoder | None = None,
    ) -> None:
        """``text`` is this rank's share of the text encoder, if it has one."""
        self.dits: Mapping[str, PackedDiT] = dits.by_partition
        self.runners: Mapping[str, Runner] = dits.runners
        self.residency, self.attend = residency, attend
        self._tables, self._groups, self._device = dits.tables, groups, device
        self._adapted, self._text = dits.adapted, text
        self._states: dict[int, RequestState] = {}
        self._group: StepGroup | None = None

    @torch.inference_mode()
    def obey(self, order: Order) -> None:
        """Raises what the work raises, and ``WorkerDied`` where another rank failed."""
        match order:
            case Prepare():
                self._states[order.number] = self._prepared(order)
            case Step(numbers=numbers):
                states = [self._states[number] for number in numbers]
                check_agreement(self._groups, numbers, states)
                self._group = own_step(self, *states, group=self._group)
            case Drop(numbers=numbers):
                for number in numbers:
                    self._states.pop(number, None)
                self._group = None
            case Refine(partition=partition, adapters=adapters, states=kind):
                self.use(partition, adapters)
                self.residency.enter(f"dit.{partition}.refiner")
                self.runners[partition].refine_text(taken(kind, self._device, self._groups.peers))
            case Encode(presentation=presentation, images=images, videos=videos):
                pixels = [taken(kind, self._device, self._groups.peers) for kind in (images, videos)]
                if self._text is not None:
                    self.residency.enter("text")
                    self._text.run(presentation, *pixels)

    def use(self, partition: str, adapters: Adapters) -> None:
        """As ``Components.use`` does on rank 0: each rank changes its own share of the weights."""
        use_adapters(self._adapted, partition, adapters)

    def _prepared(self, order: Prepare) -> RequestState:
        given = [taken(kind, self._device, self._groups.peers) for kind in order.tensors]
        given, cache = given[: len(given) - len(order.cache_tensors)], given[len(given) - len(order.cache_tensors) :]
        refined_text, video_rows, audio_rows, held_video, held_audio, *locks = given
        layout, schedule = order.layout, order.schedule
        state = state_of(
            self,
            self._tables.of(order.partition, schedule, plans_of(layout, schedule), order.adapters),
            request=order.request,
            task=order.task,
            partition=order.partition,
            adapters=order.adapters,
            seed=order.seed,
            geometry=order.geometry,
            layout=layout,
            schedule=schedule,
            cache=order.cache,
            anchors=Anchors(held_video, held_audio),
            locks=Locks.of_tensors(locks),
            refined_text=refined_text,
            video_rows=video_rows,
            audio_rows=audio_rows,
            step=order.step,
        )
        state.restore_cache(dict(zip(order.cache_tensors, cache, strict=True)), order.step)
        return state
