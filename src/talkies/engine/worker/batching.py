"""Several requests in one forward: each is its own attention document and none sees another.

Rows meet only in attention, which keeps to documents; norms, projections and modulation work row by row. So a
co-batched step equals the solo step up to the rounding of larger matrix products, and a NaN stays where it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from talkies.attention.base import Exactness
from talkies.engine.load.build import Components
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.state import RequestState
from talkies.h3.packing import PackedLayout, concat_layouts
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import JointRuns, join_modulations
from talkies.stepcache.off import Off


def batch_key(state: RequestState) -> Hashable | None:
    """States with equal keys may share a forward; None may not share at all.

    A step cache decides for one request, while a forward runs or skips for all of its rows.
    """
    if state.done or not isinstance(state.step_cache, Off):
        return None
    return ("denoise", state.partition)


@dataclass(frozen=True, slots=True)
class _Group:
    """What stays the same while the same requests step together."""

    members: tuple[PackedLayout, ...]
    layout: PackedLayout
    view: RowView
    refined_text: Tensor
    num_video_rows: list[int]  # of each member
    num_audio_rows: list[int]
    runs: JointRuns = field(default_factory=dict)

    @classmethod
    def of(cls, dit: PackedDiT, states: Sequence[RequestState]) -> _Group:
        members = tuple(state.layout for state in states)
        layout = concat_layouts(members)
        return cls(
            members,
            layout,
            dit.view(layout),
            torch.cat([state.refined_text for state in states]),
            [member.num_video_rows for member in members],
            [member.num_audio_rows for member in members],
        )

    def is_of(self, states: Sequence[RequestState]) -> bool:
        same = zip(self.members, states, strict=False)
        return len(self.members) == len(states) and all(member is state.layout for member, state in same)


class Batcher:
    """Steps groups of states; keeps what the last group shares, since it lives for many steps."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._group: _Group | None = None

    def step(self, states: Sequence[RequestState]) -> None:
        """One forward for all of them. Alone, it is exactly :func:`pipeline.denoise_step`."""
        if len(states) == 1:
            pipeline.denoise_step(self._components, states[0])
        else:
            self._step_together(states)

    def forget(self) -> None:
        """Drops the group, so that nothing of a finished request stays here."""
        self._group = None

    @torch.inference_mode()
    def _step_together(self, states: Sequence[RequestState]) -> None:
        partitions = {state.partition for state in states}
        assert len(partitions) == 1, partitions
        partition = partitions.pop()
        dit = self._components.dits[partition]
        self._components.residency.enter(f"dit.{partition}")
        if self._group is None or not self._group.is_of(states):
            self._group = _Group.of(dit, states)
        group = self._group
        modulation = join_modulations([state.feed.step(state.step) for state in states], group.runs)
        view = exact_spans(group.view, states, self._components.attend.exactness)
        x = dit.embed(
            torch.cat([state.video_rows for state in states]),
            torch.cat([state.audio_rows for state in states]),
            group.refined_text,
            group.layout,
        )
        video, audio = dit.project(dit.run_blocks(x, view, modulation), group.layout, modulation)
        each = zip(video.split(group.num_video_rows), audio.split(group.num_audio_rows), strict=True)
        pipeline.advance(states, list(each))


def exact_spans(view: RowView, states: Sequence[RequestState], exactness: Exactness | None) -> RowView:
    """The joint view; what each request would have exact alone is exact here, too."""
    if exactness is None:
        return view
    spans: list[tuple[int, int]] = []
    offset = 0
    for state in states:
        documents = pipeline.view_of_step(state, exactness).documents
        spans.extend((a + offset, b + offset) for a, b in (documents.exact if documents else ()))
        offset += state.layout.num_rows
    return view.with_exact(spans) if spans else view
