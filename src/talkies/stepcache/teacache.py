"""TeaCache (Liu et al., 2024, arXiv 2411.19108): a forward is skipped while the input of its first block has changed
little since the last one that was run.

The distance between the modulated inputs of consecutive forwards, rescaled by a polynomial that is fitted to how far
the outputs then are apart, is added up; while the sum is under the threshold, what the blocks added last time is added
again. Here each stream has its own sum and threshold, and a forward is skipped only if both are under theirs: sound
has another noise schedule and breaks first.

The input is normed and modulated without the first block's norm weight, which may be in host memory at the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.errors import ConfigError
from talkies.kernels.runs import RowRuns
from talkies.stepcache.base import Asked, Forward, StepCache, number
from talkies.stepcache.distance import relative_l1

EPS = 1e-6


class TeaCache(StepCache):
    """Holds two tensors [S, D]: the last modulated input, and what the blocks added in the last forward that was run.

    ``coefficients``: of the polynomial, highest power first, as it is published for other models; ``(1, 0)`` is the
    distance itself. ``threshold`` is what others call ``rel_l1_thresh``.
    """

    def __init__(
        self,
        *,
        threshold: float,
        audio_threshold: float | None = None,
        coefficients: Sequence[float] = (1.0, 0.0),
        max_continuous_cached_steps: int = -1,
    ) -> None:
        """Raises ``ConfigError``."""
        audio_threshold = threshold if audio_threshold is None else audio_threshold
        for name, value in (("threshold", threshold), ("audio_threshold", audio_threshold)):
            if not value >= 0:
                raise ConfigError(f"teacache: {name}={value} is negative", hint="0 skips nothing", param=name)
        if not coefficients:
            raise ConfigError("teacache: coefficients is empty", hint="[1, 0] is the distance itself")
        self._thresholds = (threshold, audio_threshold)
        self._coefficients = tuple(coefficients)
        self._most = max_continuous_cached_steps
        self._sums = [0.0, 0.0]
        self._skipped = 0  # in a row
        self._last_run = self._last_seen = -1
        self._input_SD: Tensor | None = None
        self._added_SD: Tensor | None = None

    def forward(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        input_SD = modulated_input(x_SD, run)
        skips = self._added_SD is not None and self.may_skip(step) and self._close(input_SD, run)
        self._input_SD, self._last_seen = input_SD, step
        if skips:
            assert self._added_SD is not None
            self._skipped += 1
            return x_SD + self._added_SD
        y_SD = yield from run(x_SD)
        self._added_SD = y_SD - x_SD
        self._sums, self._skipped, self._last_run = [0.0, 0.0], 0, step
        return y_SD

    def _close(self, input_SD: Tensor, run: Forward) -> bool:
        assert self._input_SD is not None
        distances = relative_l1(input_SD, self._input_SD, self.course, run)
        # What has not changed at all counts nothing, whatever the polynomial says of it.
        added = [self._rescaled(distance) if distance else 0.0 for distance in distances]
        added = [0.0 if more <= 0 else more for more in added]  # no max(): what is no number must stay that
        self._sums = [total + more for total, more in zip(self._sums, added, strict=True)]
        if 0 <= self._most <= self._skipped:
            return False
        # Not "not above": a sum that is no number must run.
        return all(total < most for total, most in zip(self._sums, self._thresholds, strict=True))

    def _rescaled(self, distance: float) -> float:
        value = 0.0
        for coefficient in self._coefficients:
            value = value * distance + coefficient
        return value

    def needs(self) -> tuple[int, ...]:
        return tuple(sorted({self._last_run, self._last_seen} - {-1}))

    def saved(self) -> dict[str, Tensor]:
        return {
            "sums": torch.tensor(self._sums, dtype=torch.float64),
            "skipped": number(self._skipped),
            "last_run": number(self._last_run),
            "last_seen": number(self._last_seen),
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        video, audio = saved["sums"].tolist()
        self._sums, self._skipped = [video, audio], int(saved["skipped"])
        self._last_run, self._last_seen = int(saved["last_run"]), int(saved["last_seen"])

    def relearn(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        self._input_SD = modulated_input(x_SD, run)
        if step != self._last_run:
            return x_SD  # it was skipped: nobody looks at what comes out
        y_SD = yield from run(x_SD)
        self._added_SD = y_SD - x_SD
        return y_SD


def modulated_input(x_SD: Tensor, run: Forward) -> Tensor:
    """What the first block's attention is given, but for its norm weight: [S, D] in the dtype of ``x_SD``."""
    block = run.modulation.block(0)
    h_SD = F.rms_norm(x_SD, (x_SD.shape[-1],), None, EPS)
    runs: RowRuns = block.runs
    for start, stop, entry in runs:
        h_SD[start:stop].mul_(1 + block[1][entry]).add_(block[0][entry])
    return h_SD
