"""What a running request tells its owner, and how its owner stops it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Share of a clip's time, for one percentage over all stages; the denoise share is what an ETA follows.
STAGE_WEIGHTS = {"prepare": 0.01, "encode": 0.04, "denoise": 0.80, "decode": 0.15}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """``step`` of ``num_steps`` is done in ``stage``; ``fraction`` covers the whole request, 0..1."""

    stage: str
    step: int
    num_steps: int
    fraction: float
    eta_s: float | None = None
    output: int = 0  # which of several outputs


OnProgress: TypeAlias = Callable[[Progress], None]
ShouldStop: TypeAlias = Callable[[], bool]


class Reporter:
    """Turns finished work into :class:`Progress`. Counts what is done, never what was only enqueued."""

    def __init__(self, on_progress: OnProgress | None, *, output: int = 0, num_outputs: int = 1) -> None:
        self._on_progress = on_progress
        self._output, self._num_outputs = output, num_outputs
        self._stage, self._stage_start = "", 0.0

    def __call__(self, stage: str, step: int, num_steps: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._stage_start = stage, now
        if self._on_progress is None:
            return
        before = 0.0
        for name, weight in STAGE_WEIGHTS.items():
            if name == stage:
                break
            before += weight
        within = step / num_steps if num_steps else 1.0
        mine = before + STAGE_WEIGHTS[stage] * within
        fraction = (self._output + mine) / self._num_outputs
        eta = None
        if stage == "denoise" and step:
            eta = (now - self._stage_start) / step * (num_steps - step)
        self._on_progress(
            Progress(
                stage=stage,
                step=step,
                num_steps=num_steps,
                fraction=min(1.0, fraction),
                eta_s=eta,
                output=self._output,
            )
        )
