"""Forwards that are not run, by a schedule made offline: the velocity of each stream is forecast from the last ones.

Which forwards run is known before the first one (``schedule.py``), so nothing is looked at, ranks have nothing to agree
on, and what a request will cost is known when it comes. A velocity is forecast by the polynomial of the given order
through the last computed ones, over the noise level of its own stream: picture and sound have different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from talkies.errors import ConfigError
from talkies.stepcache.base import STREAMS, Course, StepCache, Velocities
from talkies.stepcache.extrapolate import extrapolated

MAX_ORDER = 2


class Forecast(StepCache):
    """Holds the velocities of the last ``1 + order`` forwards that ran: float32 video [Nv, C * 4] and audio [Na, C]."""

    def __init__(self, *, runs: Sequence[int], video_order: int = 1, audio_order: int = 1) -> None:
        """``runs``: the forwards that are run, from 0, ascending. Raises ``ConfigError``."""
        if list(runs) != sorted(set(runs)) or not runs or runs[0] != 0:
            raise ConfigError(f"forecast: runs={list(runs)} do not ascend from 0", param="runs")
        for name, order in (("video_order", video_order), ("audio_order", audio_order)):
            if not 0 <= order <= MAX_ORDER:
                raise ConfigError(f"forecast: {name}={order}", hint=f"0..{MAX_ORDER}", param=name)
        self._runs = tuple(runs)
        self._runs_set = frozenset(runs)
        self._orders = (video_order, audio_order)
        self._known: tuple[tuple[int, Velocities], ...] = ()

    def begin(self, course: Course) -> None:
        if self._runs[-1] != course.num_forwards - 1:
            raise ConfigError(
                f"forecast: a schedule of {self._runs[-1] + 1} forwards, and the request has {course.num_forwards}",
                hint="calibrate for that number of steps",
                param="runs",
            )
        super().begin(course)

    def velocities(self, step: int) -> Velocities | None:
        if step in self._runs_set:
            return None
        video, audio = (self._forecast(stream, step) for stream in range(len(STREAMS)))
        return video, audio

    def _forecast(self, stream: int, step: int) -> Tensor:
        sigmas = (self.course.video_sigmas, self.course.audio_sigmas)[stream]
        last = self._known[-self._orders[stream] - 1 :]
        return extrapolated([sigmas[at] for at, _ in last], [pair[stream] for _, pair in last], sigmas[step])

    def observe(self, step: int, video: Tensor, audio: Tensor) -> None:
        self._known = (*self._known, (step, (video, audio)))[-max(self._orders) - 1 :]

    def saved(self) -> dict[str, Tensor]:
        return {
            f"{step}.{name}": tensor for step, pair in self._known for name, tensor in zip(STREAMS, pair, strict=True)
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        steps = sorted({int(name.split(".")[0]) for name in saved})
        if not steps:
            raise ValueError("no velocities were saved")
        video, audio = STREAMS
        self._known = tuple((step, (saved[f"{step}.{video}"], saved[f"{step}.{audio}"])) for step in steps)
