"""One output of one request between two steps: a few tensors and a step index, which is all a resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from talkies.attention.base import Exactness, Trimmed
from talkies.engine.load.adapt import Adapters
from talkies.engine.pipeline.given import Given
from talkies.h3.geometry import Geometry
from talkies.h3.layout import Role
from talkies.h3.packing import PackedLayout
from talkies.h3.timesteps import StepPlan, step_plan
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import ModulationTable
from talkies.placement.modulation_feed import ModulationFeed
from talkies.request import Task, VideoRequest
from talkies.sampling.anchors import Anchors
from talkies.sampling.locks import Locks
from talkies.sampling.schedule import DualSchedule
from talkies.stepcache import registry as step_caches
from talkies.stepcache.base import StepCache


@dataclass(kw_only=True)
class RequestState:
    """Nv video rows, Na audio rows; in both the condition rows come first.

    Everything but ``video_rows``, ``audio_rows`` and ``step`` follows from the request alone and is made again
    after a restart; only these three are saved (:meth:`tensors`) and restored (:meth:`restore`).
    """

    request: VideoRequest
    task: Task
    partition: str  # which DiT
    seed: int  # of this output
    geometry: Geometry
    layout: PackedLayout
    view: RowView
    schedule: DualSchedule
    adapters: Adapters  # in the weights while it steps
    table: ModulationTable
    feed: ModulationFeed  # the table's steps on the device, one ahead
    anchors: Anchors
    locks: Locks = field(default_factory=Locks)  # rows of the target that are given
    given: tuple[Given, ...] = ()  # the media that they were made from
    step_cache: StepCache
    refined_text: Tensor  # [L, D]
    video_rows: Tensor  # float32 [Nv, C * patch]
    audio_rows: Tensor  # float32 [Na, C]
    step: int = 0  # forwards done

    @property
    def num_forwards(self) -> int:
        return self.schedule.num_forwards

    @property
    def done(self) -> bool:
        return self.step >= self.num_forwards

    @property
    def num_rows(self) -> int:
        return self.layout.num_rows

    def tensors(self) -> dict[str, Tensor]:
        """What must survive a restart, on the CPU."""
        return {
            "video_rows": self.video_rows.cpu(),
            "audio_rows": self.audio_rows.cpu(),
            "step": torch.tensor(self.step, dtype=torch.int64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from saved tensors. Raises ``ValueError`` if they are of another request's shape."""
        step = int(tensors["step"])
        for name in ("video_rows", "audio_rows"):
            if tensors[name].shape != getattr(self, name).shape:
                raise ValueError(f"saved {name} have shape {tuple(tensors[name].shape)}, not this request's")
        if not 0 <= step <= self.num_forwards:
            raise ValueError(f"saved step {step} is outside 0..{self.num_forwards}")
        self.video_rows = tensors["video_rows"].to(self.video_rows.device)
        self.audio_rows = tensors["audio_rows"].to(self.audio_rows.device)
        self.step = step


class Owner(Protocol):
    """What a state's derived parts are made from."""

    @property
    def dits(self) -> Mapping[str, PackedDiT]: ...

    @property
    def attend(self) -> Trimmed: ...


def state_of(
    owner: Owner, table: ModulationTable, *, partition: str, layout: PackedLayout, schedule: DualSchedule, **rest: Any
) -> RequestState:
    """A state with what follows from its layout and schedule: view, feed and step cache. ``rest`` are further fields of
    it, tensors on the device. Every rank makes it so."""
    dit = owner.dits[partition]
    step_cache = step_caches.create("off")
    step_cache.begin(layout, schedule.num_forwards)
    return RequestState(
        partition=partition,
        layout=layout,
        view=exact_conditions(dit.view(layout), layout, owner.attend.exactness),
        schedule=schedule,
        table=table,
        feed=ModulationFeed(table, dit.device),
        step_cache=step_cache,
        **rest,
    )


def plans_of(layout: PackedLayout, schedule: DualSchedule) -> list[StepPlan]:
    """Of every forward of a schedule."""
    return [step_plan(layout, t_v, t_a) for t_v, t_a in zip(schedule.t_video, schedule.t_audio, strict=True)]


def exact_conditions(view: RowView, layout: PackedLayout, exactness: Exactness | None) -> RowView:
    """The view of a request; an approximating attention is told which queries it may not approximate."""
    if exactness is None or not exactness.condition_rows:
        return view
    conditions = (Role.VIDEO_CONDITION, Role.AUDIO_CONDITION)
    spans = [(s.start, s.stop) for s in layout.segments if s.role in conditions]
    return view.with_exact(spans) if spans else view
