"""One forward, of one request or of several that share it, and the step that each of them moves by.

Several requests are several attention documents of one sequence, and none sees another: rows meet only in attention,
which keeps to documents; norms, projections and modulation work row by row. So a shared step equals the steps of each
alone up to the rounding of larger matrix products, and a NaN stays where it is.

Where ranks share the rows of a forward, each embeds, runs and projects its own, and the projected ones are gathered:
after it all ranks hold the same states, and move them by the same step.

Each request has a step cache, which may know its velocities without a forward, or leave blocks out: a forward is of the
rows of those that run (``forward/skipping.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from talkies.attention.base import Documents, Trimmed
from talkies.engine.load.adapt import Adapters
from talkies.engine.pipeline.forward.group import StepGroup, exact_view, joined
from talkies.engine.pipeline.forward.skipping import relearn, through_policies
from talkies.engine.pipeline.orders import lead_step
from talkies.engine.pipeline.state import RequestState
from talkies.h3.packing import PackedLayout
from talkies.h3.spans import Arranged, Stream
from talkies.model.block import RowView
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation
from talkies.model.runner import BlockRun, Runner
from talkies.placement.components import Residency
from talkies.placement.ranks.leader import Leader
from talkies.sampling.euler import euler_steps
from talkies.stepcache.base import StepCache, Velocities
from talkies.stepcache.off import Off


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
    dit, runner = components.dits[partition], components.runners[partition]
    if runner.sharing is not None and len(states) > 1 and not all(isinstance(s.step_cache, Off) for s in states):
        # A rank's share is of the rows of all: were some of them left out, the others would be other ranks' rows.
        for state in states:
            own_step(components, state)
        return StepGroup.of(dit, states) if group is None or not group.is_of(states) else group
    if group is None or not group.is_of(states):
        group = StepGroup.of(dit, states)

    def enter() -> None:
        components.use(partition, states[0].adapters)
        components.residency.enter(f"dit.{partition}")

    for state in states:
        if state.to_relearn:
            enter()
            relearn(state, dit, partial(_forward, components, dit, runner))
    # A forward that fails leaves every request as it was, its policy included.
    caches = [copy(state.step_cache) for state in states]
    foreseen = [cache.velocities(state.step) for cache, state in zip(caches, states, strict=True)]
    running = [index for index, known in enumerate(foreseen) if known is None]
    ran = [0.0] * len(states)
    if running:
        enter()
        part, those = group.part(dit, states, running), [states[index] for index in running]
        found, shares = _forward(components, dit, runner, part, those, [caches[index] for index in running])
        for index, made, share in zip(running, found, shares, strict=True):
            foreseen[index], ran[index] = made, share
            caches[index].observe(states[index].step, *made)
    entered = [(state.video_rows, state.audio_rows) for state in states]
    advance(states, [made for made in foreseen if made is not None])
    for state, cache, share, rows in zip(states, caches, ran, entered, strict=True):
        state.step_cache = cache
        state.stepped(share, rows)
    return group


def _forward(
    components: Denoiser,
    dit: PackedDiT,
    runner: Runner,
    group: StepGroup,
    states: Sequence[RequestState],
    caches: Sequence[StepCache],
    *,
    again: bool = False,
) -> tuple[list[Velocities], list[float]]:
    """The coming forward of ``states``, whose group ``group`` is: of each its velocities, and which share of its blocks
    was run. ``again``: as it was, for a policy to keep what it kept then."""
    each = [state.feed.step(state.step) for state in states]
    rows = joined([state.video_rows for state in states]), joined([state.audio_rows for state in states])
    exactness = components.attend.exactness
    view = exact_view(group.view, states, exactness)
    shares = [1.0] * len(states)
    through: Callable[[Tensor, BlockRun], Tensor] = run_all
    if not all(isinstance(cache, Off) for cache in caches):
        through = partial(through_policies, dit, group, states, caches, each, exactness, runner.total, shares, again)
    made = velocities(dit, runner, *rows, group.refined_text, group.layout, view, group.joint(each), through)
    video, audio = made[0].split(group.num_video_rows), made[1].split(group.num_audio_rows)
    return list(zip(video, audio, strict=True)), shares


def run_all(x_SD: Tensor, run: BlockRun) -> Tensor:
    """What takes embedded rows through the blocks where nobody skips any."""
    return run(x_SD)


def velocities(
    dit: PackedDiT,
    runner: Runner,
    video_rows: Tensor,
    audio_rows: Tensor,
    refined_text_LD: Tensor,
    layout: PackedLayout,
    view: RowView,
    modulation: StepModulation,
    through: Callable[[Tensor, BlockRun], Tensor] = run_all,
) -> tuple[Tensor, Tensor]:
    """One forward over all rows of ``layout``: float32 velocities, video [Nv, C * 4] and audio [Na, C].

    ``through`` takes what was embedded through the blocks. Where ranks share rows, it is given this rank's alone, and
    what comes back are the rows of all ranks: collective.
    """
    sharing, first_row = runner.sharing, 0
    part: Arranged = layout
    if sharing is not None:
        share = part = sharing.share(layout.spans)
        first_row = share.start
        video_rows, audio_rows = share.of(Stream.VIDEO, video_rows), share.of(Stream.AUDIO, audio_rows)
        refined_text_LD = share.of(Stream.TEXT, refined_text_LD)
        view, modulation = whole_documents(view).cut(share.start, share.stop), modulation.cut(share.start, share.stop)
    x_SD = dit.embed(video_rows, audio_rows, refined_text_LD, part)
    x_SD = through(x_SD, BlockRun(runner.blocks, view, modulation, dit.config.num_layers, first_row))
    made = dit.project(x_SD, part, modulation)
    return made if sharing is None else sharing.gathered(*made, layout.spans)


def advance(states: Sequence[RequestState], velocities: Sequence[Velocities]) -> None:
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


def whole_documents(view: RowView) -> RowView:
    """The view of a whole sequence, which says how long it is even where all rows are one document: a share of it does
    not show that."""
    if view.documents is not None:
        return view
    num_rows = view.cos_SA.shape[0]
    return replace(view, documents=Documents((0, num_rows), num_rows))
