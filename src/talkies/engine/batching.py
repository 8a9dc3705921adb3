"""Several requests in one forward: each is its own attention document and none sees another.

Rows meet only in attention, which keeps to documents; norms, projections and modulation work row by row. So a
co-batched step equals the solo step up to the rounding of larger matrix products, and a NaN stays where it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from talkies.attention.base import Exactness
from talkies.engine import pipeline
from talkies.engine.build import Components
from talkies.engine.state import RequestState
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import JointRuns, join_modulations
from talkies.model.packing import PackedLayout, concat_layouts
from talkies.sampling.euler import euler_step
from talkies.stepcache.off import Off


def batch_key(state: RequestState) -> Hashable | None:
    """States with equal keys may share a forward; None may not share at all.

    A step cache decides for one request, while a forward runs or skips for all of its rows.
    """
    if state.done or not isinstance(state.step_cache, Off):
        return None
    return ("denoise", state.partition)


class Batcher:
    """Steps groups of states; keeps the joint layout of the last group, which lives for many steps."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._members: tuple[PackedLayout, ...] = ()
        self._joint: tuple[PackedLayout, RowView] | None = None
        self._runs: JointRuns = {}

    def step(self, states: Sequence[RequestState]) -> None:
        """One forward for all of them. Alone, it is exactly :func:`pipeline.denoise_step`."""
        if len(states) == 1:
            pipeline.denoise_step(self._components, states[0])
        else:
            self._step_together(states)

    def forget(self) -> None:
        """Drops the joint layout, so that nothing of a finished request stays here."""
        self._members, self._joint, self._runs = (), None, {}

    @torch.inference_mode()
    def _step_together(self, states: Sequence[RequestState]) -> None:
        partitions = {state.partition for state in states}
        assert len(partitions) == 1, partitions
        partition = partitions.pop()
        dit = self._components.dits[partition]
        self._components.residency.enter(f"dit.{partition}")
        layout, view = self._layout_of(dit, states)
        modulation = join_modulations([state.feed.step(state.step) for state in states], self._runs)
        view = exact_spans(view, states, self._components.attend.exactness)
        x = dit.embed(
            torch.cat([state.video_rows for state in states]),
            torch.cat([state.audio_rows for state in states]),
            torch.cat([state.refined_text for state in states]),
            layout,
        )
        video, audio = dit.project(dit.run_blocks(x, view, modulation), layout, modulation)
        videos = video.split([state.video_rows.shape[0] for state in states])
        audios = audio.split([state.audio_rows.shape[0] for state in states])
        for state, velocity_video, velocity_audio in zip(states, videos, audios, strict=True):
            _advance(state, velocity_video, velocity_audio)

    def _layout_of(self, dit: PackedDiT, states: Sequence[RequestState]) -> tuple[PackedLayout, RowView]:
        members = tuple(state.layout for state in states)
        same = len(members) == len(self._members) and all(a is b for a, b in zip(members, self._members, strict=True))
        if self._joint is None or not same:
            layout = concat_layouts(members)
            self._members, self._joint, self._runs = members, (layout, dit.view(layout)), {}
        return self._joint


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


def _advance(state: RequestState, velocity_video: Tensor, velocity_audio: Tensor) -> None:
    """What :func:`pipeline.denoise_step` does after its forward."""
    layout, step = state.layout, state.schedule.step(state.step)
    nv, na = layout.num_condition_video_rows, layout.num_condition_audio_rows
    state.video_rows[nv:] = euler_step(state.video_rows[nv:], velocity_video[nv:], step.video)
    state.audio_rows[na:] = euler_step(state.audio_rows[na:], velocity_audio[na:], step.audio)
    state.anchors.pin(state.video_rows, state.audio_rows)
    state.step += 1
