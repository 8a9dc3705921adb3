"""Between a forward and its blocks: the step caches of the requests that share it, each of which decides for its own.

S rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from talkies.attention.base import Exactness
from talkies.engine.pipeline.forward.group import StepGroup, exact_view
from talkies.engine.pipeline.state import RequestState
from talkies.model.dit import PackedDiT
from talkies.model.modulation import StepModulation
from talkies.model.runner import BlockRun
from talkies.stepcache.base import Forward, StepCache
from talkies.stepcache.lockstep import drive


def through_policies(
    dit: PackedDiT,
    group: StepGroup,
    states: Sequence[RequestState],
    caches: Sequence[StepCache],
    each: Sequence[StepModulation],
    exactness: Exactness | None,
    total: Callable[[Tensor], Tensor],
    shares: list[float],
    again: bool,
    x_SD: Tensor,
    run: BlockRun,
) -> Tensor:
    """The embedded rows of ``states`` -> those that leave their blocks, as ``caches`` say; blocks are run for those
    together that want them. ``shares`` becomes the share of its blocks that each had run."""
    alone = len(states) == 1
    # Alone its rows may be this rank's share of them, and so is ``run.modulation``.
    modulations = [run.modulation] if alone else each
    forwards = [Forward(m, run.num_blocks, run.first_row, total) for m in modulations]
    xs = [x_SD] if alone else x_SD.split([state.layout.num_rows for state in states])
    asked = [
        (cache.relearn if again else cache.forward)(state.step, x, forward)
        for cache, state, x, forward in zip(caches, states, xs, forwards, strict=True)
    ]
    runs: dict[tuple[int, ...], BlockRun] = {tuple(range(len(states))): run}

    def run_together(chosen: Sequence[int], xs: Sequence[Tensor], start: int, stop: int) -> Sequence[Tensor]:
        key = tuple(chosen)
        if key not in runs:
            part, those = group.part(dit, states, key), [states[index] for index in key]
            view = exact_view(part.view, those, exactness)
            runs[key] = BlockRun(run.blocks, view, part.joint([each[index] for index in key]), run.num_blocks)
        if len(key) == 1:
            return [runs[key](xs[0], start, stop)]
        return runs[key](torch.cat(list(xs)), start, stop).split([x.shape[0] for x in xs])

    done = drive(asked, run_together)
    shares[:] = [count / run.num_blocks for count in done.blocks]
    return done.rows[0] if alone else torch.cat(done.rows)


def relearn(state: RequestState, dit: PackedDiT, forward: Callable[..., object]) -> None:
    """Has the step cache of a request that goes on from a file see again what its state was made of: then it decides
    and gives what it would have without the break, bit for bit."""
    cache = copy(state.step_cache)
    for step in sorted(state.kept):
        past = copy(state)
        past.step, (past.video_rows, past.audio_rows) = step, state.kept[step]
        forward(StepGroup.of(dit, [past]), [past], [cache], again=True)
    state.step_cache, state.to_relearn = cache, False
