"""What a running request tells its owner, and how its owner stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Share of a clip's time, for one percentage over all stages; the denoise share is what an ETA follows.
STAGE_WEIGHTS = {"prepare": 0.01, "encode": 0.04, "denoise": 0.80, "decode": 0.15}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """``step`` of ``num_steps`` is done in ``stage``; ``fraction`` covers the whole request, 0..1.

    ``eta_s``: seconds that the forwards of all outputs still take, at the measured time of one; None before the first
    is measured and once none is left.
    """

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

    def __init__(self, on_progress: OnProgress | None, *, num_outputs: int = 1) -> None:
        self._on_progress, self._num_outputs = on_progress, num_outputs

    def __call__(self, stage: str, step: int, num_steps: int, *, output: int = 0, eta_s: float | None = None) -> None:
        if self._on_progress is None:
            return
        before = 0.0
        for name, weight in STAGE_WEIGHTS.items():
            if name == stage:
                break
            before += weight
        within = step / num_steps if num_steps else 1.0
        mine = before + STAGE_WEIGHTS[stage] * within
        fraction = (output + mine) / self._num_outputs
        self._on_progress(
            Progress(
                stage=stage,
                step=step,
                num_steps=num_steps,
                fraction=min(1.0, fraction),
                eta_s=eta_s,
                output=output,
            )
        )
