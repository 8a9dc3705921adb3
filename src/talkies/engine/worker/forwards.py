"""One forward for several jobs; where it fails for all of them, one each: each shows whether the fault is its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from talkies.engine.load.build import Components
from talkies.engine.worker.batching import Batcher
from talkies.engine.worker.job_run import JobRun

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one forward. Without a ``failure`` all of ``runs`` are a step further."""

    runs: Sequence[JobRun]
    seconds: float = 0.0
    failure: Exception | None = None
    counted: bool = True  # no: it is what a forward that failed had already done


def forward(components: Components, batcher: Batcher, runs: Sequence[JobRun]) -> Iterator[Outcome]:
    """Together, else one by one. Each outcome is to be dealt with before the next is asked for: a failed job gives back
    its memory before others try again. Raises nothing that a job can cause."""
    began = time.perf_counter()
    states = [run.state for run in runs if run.state is not None]
    steps = [state.step for state in states]
    failure: Exception | None = None
    try:
        for run in runs:
            run.before_step()
        batcher.step(states)
        components.synchronize()
    except Exception as error:
        failure = error
    if failure is None or len(runs) == 1:
        yield Outcome(runs, time.perf_counter() - began, failure)
        return
    log.warning("a forward of %d requests failed (%s): one by one", len(runs), failure)
    failure.__traceback__ = None  # or the tensors of the failed forward would stay during the next ones
    batcher.forget()
    components.release()
    for run, state, step in zip(runs, states, steps, strict=True):
        if state.step == step:
            yield from forward(components, batcher, [run])
        else:
            yield Outcome([run], counted=False)  # it had moved before the fault showed, and keeps its step
