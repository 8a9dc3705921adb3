"""One forward, of one request or of several that share it, and the step that each of them moves by.

Several requests are several attention documents of one sequence, and none sees another: rows meet only in attention,
which keeps to documents; norms, projections and modulation work row by row. So a shared step equals the steps of each
alone up to the rounding of larger matrix products, and a NaN stays where it is.

Where ranks share the rows of a forward, each embeds, runs and projects its own, and the projected ones are gathered:
after it all ranks hold the same states, and move them by the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from talkies.attention.base import Documents, Exactness, Trimmed
from talkies.engine.load.adapt import Adapters
from talkies.engine.pipeline.orders import lead_step
from talkies.engine.pipeline.state import RequestState
from talkies.h3.layout import concat_layouts
from talkies.h3.packing import PackedLayout
from talkies.h3.spans import Arranged, Stream
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import JointRuns, StepModulation, join_modulations
from talkies.model.runner import BlockRun, Runner
from talkies.placement.components import Residency
from talkies.placement.ranks.leader import Leader
from talkies.sampling.euler import euler_steps
from talkies.stepcache.off import Off

_OFF = Off()


class Denoiser(Protocol):
    """What a step needs of an engine: all of it is on every rank."""

    @property
    def dits(self) -> Mapping[str, PackedDiT]: ...

    @property
    def runners(self) -> Mapping[str, Runner]: ...

    @property
    def residency(self) -> Residency: ...

    @property
    def attend(self) -> Trimmed: ...

    @property
    def leader(self) -> Leader | None:
        """``None`` where there is one rank, and on those that follow."""
        ...

    def use(self, partition: str, adapters: Adapters) -> None: ...


@dataclass(frozen=True, slots=True)
class StepGroup:
    """What stays the same while the same requests step together, alone or shared."""

    members: tuple[PackedLayout, ...]
    layout: PackedLayout
    view: RowView
    refined_text: Tensor  # [L, D] of all members
    num_video_rows: list[int]  # of each member
    num_audio_rows: list[int]
    runs: JointRuns = field(default_factory=dict)

    @classmethod
    def of(cls, dit: PackedDiT, states: Sequence[RequestState]) -> StepGroup:
        members = tuple(state.layout for state in states)
        layout = members[0] if len(states) == 1 else concat_layouts(members)
        return cls(
            members,
            layout,
            states[0].view if len(states) == 1 else dit.view(layout),
            _joined([state.refined_text for state in states]),
            [member.num_video_rows for member in members],
            [member.num_audio_rows for member in members],
        )

    def is_of(self, states: Sequence[RequestState]) -> bool:
        same = zip(self.members, states, strict=False)
        return len(self.members) == len(states) and all(member is state.layout for member, state in same)

    def modulation(self, states: Sequence[RequestState]) -> StepModulation:
        """Of the coming forward of each."""
        each = [state.feed.step(state.step) for state in states]
        return each[0] if len(each) == 1 else join_modulations(each, self.runs)


def denoise_step(components: Denoiser, *states: RequestState, group: StepGroup | None = None) -> StepGroup:
    """One forward for all of ``states``: both modalities of each move from their sigma to the next one.

    Condition rows stay bit for bit. All must be of one partition and have the same adapters. Returns what they share;
    given back as ``group``, it saves the next step of the same requests from making it again. Where there are other
    ranks, they are told to do the same; raises ``WorkerDied`` where one of them cannot.
    """
    leader = components.leader
    if leader is None:
        return own_step(components, *states, group=group)
    return lead_step(leader, states, lambda: own_step(components, *states, group=group))


@torch.inference_mode()
def own_step(components: Denoiser, *states: RequestState, group: StepGroup | None = None) -> StepGroup:
    """:func:`denoise_step` as every rank does it."""
    partitions = {state.partition for state in states}
    assert len(partitions) == 1, partitions
    partition = partitions.pop()
    adapters = {state.adapters for state in states}
    assert len(adapters) == 1, adapters
    components.use(partition, adapters.pop())
    dit, runner = components.dits[partition], components.runners[partition]
    components.residency.enter(f"dit.{partition}")
    if group is None or not group.is_of(states):
        group = StepGroup.of(dit, states)
    modulation = group.modulation(states)
    rows = _joined([state.video_rows for state in states]), _joined([state.audio_rows for state in states])
    view = exact_view(group.view, states, components.attend.exactness)
    # A policy decides for one request, while a shared forward runs or skips for the rows of all: see ``batch_key``.
    cache = states[0].step_cache if len(states) == 1 else _OFF
    through = partial(cache.forward, states[0].step)
    video, audio = velocities(dit, runner, *rows, group.refined_text, group.layout, view, modulation, through)
    each = zip(video.split(group.num_video_rows), audio.split(group.num_audio_rows), strict=True)
    advance(states, list(each))
    return group


def velocities(
    dit: PackedDiT,
    runner: Runner,
    video_rows: Tensor,
    audio_rows: Tensor,
    refined_text_LD: Tensor,
    layout: PackedLayout,
    view: RowView,
    modulation: StepModulation,
    through: Callable[[Tensor, BlockRun], Tensor] = lambda x_SD, run: run(x_SD),
) -> tuple[Tensor, Tensor]:
    """One forward over all rows of ``layout``: float32 velocities, video [Nv, C * 4] and audio [Na, C].

    ``through`` takes what was embedded through the blocks. Where ranks share rows, it is given this rank's alone, and
    what comes back are the rows of all ranks: collective.
    """
    sharing = runner.sharing
    part: Arranged = layout
    if sharing is not None:
        share = part = sharing.share(layout.spans)
        video_rows, audio_rows = share.of(Stream.VIDEO, video_rows), share.of(Stream.AUDIO, audio_rows)
        refined_text_LD = share.of(Stream.TEXT, refined_text_LD)
        view, modulation = whole_documents(view).cut(share.start, share.stop), modulation.cut(share.start, share.stop)
    x_SD = dit.embed(video_rows, audio_rows, refined_text_LD, part)
    x_SD = through(x_SD, BlockRun(runner.blocks, view, modulation, dit.config.num_layers))
    made = dit.project(x_SD, part, modulation)
    return made if sharing is None else sharing.gathered(*made, layout.spans)


def advance(states: Sequence[RequestState], velocities: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Moves each state by its (video, audio) velocities, condition and locked rows included: those are then pinned
    again.

    All in a few launches; no state changes before all have been computed.
    """
    steps = [state.schedule.step(state.step) for state in states]
    moved = euler_steps(
        [rows for state in states for rows in (state.video_rows, state.audio_rows)],
        [velocity for pair in velocities for velocity in pair],
        [step for both in steps for step in (both.video, both.audio)],
    )
    for state, step, video_rows, audio_rows in zip(states, steps, moved[::2], moved[1::2], strict=True):
        state.anchors.pin(video_rows, audio_rows)
        state.locks.pin(video_rows, audio_rows, step)
        state.video_rows, state.audio_rows = video_rows, audio_rows
        state.step += 1


def view_of_step(state: RequestState, exactness: Exactness | None) -> RowView:
    """The view of the coming forward: whole forwards at the ends of a run are exact."""
    if exactness is None or not exactness.whole_step(state.step, state.num_forwards):
        return state.view
    return state.view.with_exact([(0, state.layout.num_rows)])


def exact_view(view: RowView, states: Sequence[RequestState], exactness: Exactness | None) -> RowView:
    """The joint view of the coming forward; what each request would have exact alone is exact here, too."""
    if len(states) == 1:
        return view_of_step(states[0], exactness)
    if exactness is None:
        return view
    spans: list[tuple[int, int]] = []
    offset = 0
    for state in states:
        documents = view_of_step(state, exactness).documents
        spans.extend((a + offset, b + offset) for a, b in (documents.exact if documents else ()))
        offset += state.layout.num_rows
    return view.with_exact(spans) if spans else view


def whole_documents(view: RowView) -> RowView:
    """The view of a whole sequence, which says how long it is even where all rows are one document: a share of it does
    not show that."""
    if view.documents is not None:
        return view
    num_rows = view.cos_SA.shape[0]
    return replace(view, documents=Documents((0, num_rows), num_rows))


def _joined(tensors: list[Tensor]) -> Tensor:
    """One after another; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
