"""DBCache, the block cache of cache-dit (https://github.com/vipshop/cache-dit), with its names of parameters.

The first ``Fn_compute_blocks`` always run. If what they added to their input is near what they added in the last
forward that was run whole, the blocks in the middle are left out and what those added then is added again; the last
``Bn_compute_blocks`` always run, and mend what they can. With ``taylorseer_order`` (TaylorSeer, Liu et al., 2025, arXiv
2503.06923) what the middle adds is not repeated but forecast, by the polynomial through its last values.

As everywhere here, video and audio rows are looked at apart, and the middle is left out only if both are near.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from talkies.errors import ConfigError
from talkies.stepcache.base import Asked, Forward, StepCache, number
from talkies.stepcache.distance import relative_l1
from talkies.stepcache.extrapolate import extrapolated

MAX_ORDER = 3


class BlockCache(StepCache):
    """Holds ``2 + taylorseer_order`` tensors [S, D].

    ``max_warmup_steps`` forwards run whole first. ``max_cached_steps`` and ``max_continuous_cached_steps`` bound those
    that are cut short, in all and in a row; -1: no bound. ``residual_diff_threshold`` is for both streams,
    ``audio_residual_diff_threshold`` for the sound alone.
    """

    def __init__(
        self,
        *,
        residual_diff_threshold: float,
        audio_residual_diff_threshold: float | None = None,
        Fn_compute_blocks: int = 1,
        Bn_compute_blocks: int = 0,
        max_warmup_steps: int = 4,
        max_cached_steps: int = -1,
        max_continuous_cached_steps: int = -1,
        taylorseer_order: int = 0,
    ) -> None:
        """Raises ``ConfigError``."""
        audio = residual_diff_threshold if audio_residual_diff_threshold is None else audio_residual_diff_threshold
        self._thresholds = (residual_diff_threshold, audio)
        for name, value, least, most in (
            ("residual_diff_threshold", residual_diff_threshold, 0, None),
            ("audio_residual_diff_threshold", audio, 0, None),
            ("Fn_compute_blocks", Fn_compute_blocks, 1, None),
            ("Bn_compute_blocks", Bn_compute_blocks, 0, None),
            ("max_warmup_steps", max_warmup_steps, 0, None),
            ("max_cached_steps", max_cached_steps, -1, None),
            ("max_continuous_cached_steps", max_continuous_cached_steps, -1, None),
            ("taylorseer_order", taylorseer_order, 0, MAX_ORDER),
        ):
            if not value >= least or (most is not None and value > most):
                limit = f"at least {least}" if most is None else f"{least}..{most}"
                raise ConfigError(f"block cache: {name}={value}", hint=f"{name} is {limit}", param=name)
        self._first, self._last = Fn_compute_blocks, Bn_compute_blocks
        self._warmup, self._most, self._most_in_a_row = max_warmup_steps, max_cached_steps, max_continuous_cached_steps
        self._points = taylorseer_order + 1
        self._cached = self._in_a_row = 0
        self._steps: list[int] = []  # that ran whole, the last ``_points``
        self._middles: list[Tensor] = []  # [S, D] of each: what the middle added
        self._entry_SD: Tensor | None = None  # what the first blocks added in the last of them

    def forward(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        end = self._end(run)
        y_SD = yield from run(x_SD, 0, self._first)
        entry_SD = y_SD - x_SD
        if self._may_cut(step) and self._close(entry_SD, run):
            self._cached, self._in_a_row = self._cached + 1, self._in_a_row + 1
            z_SD = y_SD + extrapolated(self._steps, self._middles, step)
        else:
            z_SD = yield from self._whole(step, y_SD, entry_SD, end, run)
            self._in_a_row = 0
        return (yield from run(z_SD, end)) if end < run.num_blocks else z_SD

    def _end(self, run: Forward) -> int:
        """Of the middle."""
        end = run.num_blocks - self._last
        if end <= self._first:
            raise ConfigError(
                f"block cache: Fn_compute_blocks={self._first} and Bn_compute_blocks={self._last} leave nothing of "
                f"{run.num_blocks} blocks",
                hint=f"together at most {run.num_blocks - 1}",
                param="Fn_compute_blocks",
            )
        return end

    def _whole(self, step: int, y_SD: Tensor, entry_SD: Tensor, end: int, run: Forward) -> Asked:
        z_SD = yield from run(y_SD, self._first, end)
        self._entry_SD = entry_SD
        self._steps = [*self._steps, step][-self._points :]
        self._middles = [*self._middles[-self._points + 1 :], z_SD - y_SD] if self._points > 1 else [z_SD - y_SD]
        return z_SD

    def _may_cut(self, step: int) -> bool:
        return (
            self.may_skip(step)
            and step >= self._warmup
            and bool(self._middles)
            and not 0 <= self._most <= self._cached
            and not 0 <= self._most_in_a_row <= self._in_a_row
        )

    def _close(self, entry_SD: Tensor, run: Forward) -> bool:
        assert self._entry_SD is not None
        distances = relative_l1(entry_SD, self._entry_SD, self.course, run)
        # A threshold of 0 cuts nothing, and neither does a distance that is no number.
        return all(distance < most for distance, most in zip(distances, self._thresholds, strict=True))

    def needs(self) -> tuple[int, ...]:
        return tuple(self._steps)

    def saved(self) -> dict[str, Tensor]:
        return {"cached": number(self._cached), "in_a_row": number(self._in_a_row)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._cached, self._in_a_row = int(saved["cached"]), int(saved["in_a_row"])
        self._steps, self._middles = [], []

    def relearn(self, step: int, x_SD: Tensor, run: Forward) -> Asked:
        y_SD = yield from run(x_SD, 0, self._first)
        return (yield from self._whole(step, y_SD, y_SD - x_SD, self._end(run), run))
