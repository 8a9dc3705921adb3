"""Requests that share a forward: what they keep from step to step, and how those of them that run go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from talkies.attention.base import Exactness
from talkies.engine.pipeline.state import RequestState
from talkies.h3.layout import concat_layouts
from talkies.h3.packing import PackedLayout
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import JointRuns, StepModulation, join_modulations

MOST_PARTS = 16  # that a group remembers: which of its requests run together changes from step to step


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
    parts: dict[tuple[int, ...], StepGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, dit: PackedDiT, states: Sequence[RequestState]) -> StepGroup:
        members = tuple(state.layout for state in states)
        layout = members[0] if len(states) == 1 else concat_layouts(members)
        return cls(
            members,
            layout,
            states[0].view if len(states) == 1 else dit.view(layout),
            joined([state.refined_text for state in states]),
            [member.num_video_rows for member in members],
            [member.num_audio_rows for member in members],
        )

    def is_of(self, states: Sequence[RequestState]) -> bool:
        same = zip(self.members, states, strict=False)
        return len(self.members) == len(states) and all(member is state.layout for member, state in same)

    def part(self, dit: PackedDiT, states: Sequence[RequestState], chosen: Sequence[int]) -> StepGroup:
        """That of the ``chosen`` of ``states``, whose group this is."""
        key = tuple(chosen)
        if len(key) == len(states):
            return self
        if key not in self.parts:
            if len(self.parts) >= MOST_PARTS:
                self.parts.pop(next(iter(self.parts)))
            self.parts[key] = StepGroup.of(dit, [states[index] for index in key])
        return self.parts[key]

    def modulation(self, states: Sequence[RequestState]) -> StepModulation:
        """Of the coming forward of each."""
        return self.joint([state.feed.step(state.step) for state in states])

    def joint(self, each: Sequence[StepModulation]) -> StepModulation:
        return each[0] if len(each) == 1 else join_modulations(each, self.runs)


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


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """One after another; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
