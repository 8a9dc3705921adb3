"""One output of one request between two steps: a few tensors and a step index, which is all a resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
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
from talkies.quality import CachePolicy
from talkies.request import Task, VideoRequest
from talkies.sampling.anchors import Anchors
from talkies.sampling.locks import Locks
from talkies.sampling.schedule import DualSchedule
from talkies.stepcache import registry as step_caches
from talkies.stepcache.base import Course, StepCache


@dataclass(kw_only=True)
class RequestState:
    """Nv video rows, Na audio rows; in both the condition rows come first.

    Everything but ``video_rows``, ``audio_rows`` and ``step`` follows from the request alone and is made again
    after a restart; only these three are saved (:meth:`tensors`) and restored (:meth:`restore`), and with them what the
    step cache needs to go on as it would have.
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
    cache: CachePolicy
    step_cache: StepCache  # the policy that this names, with its state
    refined_text: Tensor  # [L, D]
    video_rows: Tensor  # float32 [Nv, C * patch]
    audio_rows: Tensor  # float32 [Na, C]
    step: int = 0  # forwards done
    ran: float = 0.0  # of them, in whole forwards: what was run of their blocks
    last_ran: float = 1.0  # of the last one, in parts of a forward
    hits: int = 0  # forwards of which something was skipped
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # rows that entered what the step cache needs
    to_relearn: bool = False  # the step cache was restored and has yet to see those again

    @property
    def num_forwards(self) -> int:
        return self.schedule.num_forwards

    @property
    def done(self) -> bool:
        return self.step >= self.num_forwards

    @property
    def num_rows(self) -> int:
        return self.layout.num_rows

    @property
    def skipped_fraction(self) -> float:
        """Of the blocks of all forwards so far."""
        return 1.0 - self.ran / self.step if self.step else 0.0

    @property
    def forwards_left(self) -> float:
        """Whole ones that are expected to be run yet: those of a schedule, or what the policy leaves out on average."""
        steps_left = self.num_forwards - self.step
        expected = self.num_forwards * (1 - self.cache.skipped) - self.ran
        return min(float(steps_left), max(1.0, expected)) if steps_left else 0.0

    def stepped(self, ran: float, entered: tuple[Tensor, Tensor]) -> None:
        """After a step of which the share ``ran`` of the blocks was run, on the rows ``entered``."""
        self.ran, self.last_ran = self.ran + ran, ran
        self.hits += ran < 1.0
        known = {**self.kept, self.step - 1: entered}
        self.kept = {step: known[step] for step in self.step_cache.needs()}

    def tensors(self) -> dict[str, Tensor]:
        """What must survive a restart, on the CPU."""
        known = {
            "video_rows": self.video_rows,
            "audio_rows": self.audio_rows,
            "step": torch.tensor(self.step, dtype=torch.int64),
            **self.cache_tensors(),
        }
        return {name: tensor.cpu() for name, tensor in known.items()}

    def cache_tensors(self) -> dict[str, Tensor]:
        """What the step cache needs to go on; nothing of one that has no state."""
        kept = {f"kept.{step}.{i}": rows for step, pair in self.kept.items() for i, rows in enumerate(pair)}
        saved = {f"cache.{name}": tensor for name, tensor in self.step_cache.saved().items()}
        done = {"ran": torch.tensor([self.ran, self.hits], dtype=torch.float64)} if self.hits else {}
        named = {"policy": torch.tensor(self.cache.fingerprint)} if self.cache.name != "off" else {}
        return {**kept, **saved, **done, **named}

    def restore_cache(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Takes what :meth:`cache_tensors` gave after ``step`` forwards. Raises ``KeyError`` or ``ValueError`` for what
        another policy gave; then nothing has changed."""
        device = self.video_rows.device
        if self.cache.name != "off" and int(tensors["policy"]) != self.cache.fingerprint:
            raise ValueError("it was saved with another step cache")
        steps = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("kept.")})
        kept = {at: (tensors[f"kept.{at}.0"].to(device), tensors[f"kept.{at}.1"].to(device)) for at in steps}
        ran, hits = tensors["ran"].tolist() if "ran" in tensors else (float(step), 0)
        saved = {name.removeprefix("cache."): t.to(device) for name, t in tensors.items() if name.startswith("cache.")}
        step_cache = copy(self.step_cache)
        if step:
            step_cache.restore(saved)
        self.step_cache, self.kept, self.to_relearn = step_cache, kept, bool(kept)
        self.ran, self.hits = ran, int(hits)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from saved tensors. Raises ``ValueError`` if they are of another request's shape or another step
        cache; then nothing has changed."""
        step = int(tensors["step"])
        for name in ("video_rows", "audio_rows"):
            if tensors[name].shape != getattr(self, name).shape:
                raise ValueError(f"saved {name} have shape {tuple(tensors[name].shape)}, not this request's")
        if not 0 <= step <= self.num_forwards:
            raise ValueError(f"saved step {step} is outside 0..{self.num_forwards}")
        self.restore_cache(tensors, step)
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
    owner: Owner,
    table: ModulationTable,
    *,
    partition: str,
    layout: PackedLayout,
    schedule: DualSchedule,
    cache: CachePolicy,
    **rest: Any,
) -> RequestState:
    """A state with what follows from its layout and schedule: view, feed and step cache. ``rest`` are further fields of
    it, tensors on the device. Every rank makes it so."""
    dit = owner.dits[partition]
    step_cache = step_caches.create(cache.name, cache.parameters)
    step_cache.begin(course_of(layout, schedule, dit.config.num_layers))
    return RequestState(
        partition=partition,
        layout=layout,
        view=exact_conditions(dit.view(layout), layout, owner.attend.exactness),
        schedule=schedule,
        table=table,
        feed=ModulationFeed(table, dit.device),
        cache=cache,
        step_cache=step_cache,
        **rest,
    )


def course_of(layout: PackedLayout, schedule: DualSchedule, num_blocks: int) -> Course:
    """What a step cache knows of its request."""
    return Course(
        layout=layout,
        num_blocks=num_blocks,
        video_sigmas=tuple(schedule.video_sigmas[:-1].tolist()),
        audio_sigmas=tuple(schedule.audio_sigmas[:-1].tolist()),
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
