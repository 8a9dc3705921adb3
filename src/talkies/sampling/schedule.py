"""Two noise schedules that walk in lockstep, one per modality (docs/model.md, Sigma schedules)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from talkies.errors import ConfigError, InvalidRequest


class EulerFactors(NamedTuple):
    """What an Euler step multiplies by: float32 values held as exact Python floats, made once a schedule.

    As tensors each would be computed again at every step, a call of torch for each.
    """

    to_data: float  # 1 - t: from a row along its velocity to x0
    keep: float  # of the row
    take: float  # of x0


@dataclass(frozen=True, slots=True)
class Step:
    """One modality's part of a forward. Tensors are 0-d float32; ``t = 1 - sigma`` is what the DiT is fed."""

    sigma: Tensor
    sigma_next: Tensor
    t: Tensor
    factors: EulerFactors


@dataclass(frozen=True, slots=True)
class DualStep:
    video: Step
    audio: Step


@dataclass(frozen=True, eq=False)
class DualSchedule:
    """``video_sigmas`` and ``audio_sigmas``: float32 [N] on CPU, strictly decreasing, ending at exactly 0."""

    video_sigmas: Tensor
    audio_sigmas: Tensor

    @property
    def num_sigmas(self) -> int:
        return self.video_sigmas.shape[0]

    @property
    def num_forwards(self) -> int:
        return self.num_sigmas - 1  # the terminal 0 has no forward

    @cached_property
    def t_video(self) -> Tensor:
        """Timestep of each forward, float32 [num_forwards]."""
        return 1.0 - self.video_sigmas[:-1]

    @cached_property
    def t_audio(self) -> Tensor:
        return 1.0 - self.audio_sigmas[:-1]

    @cached_property
    def key(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Equal for equal schedules; modulation tables are kept by it."""
        return tuple(self.video_sigmas.tolist()), tuple(self.audio_sigmas.tolist())

    def step(self, index: int) -> DualStep:
        """The two steps of forward ``index``, 0-based."""
        if not 0 <= index < self.num_forwards:
            raise IndexError(f"forward {index} of {self.num_forwards}")
        return self._steps[index]

    @cached_property
    def _steps(self) -> tuple[DualStep, ...]:
        video, audio = _steps(self.video_sigmas, self.t_video), _steps(self.audio_sigmas, self.t_audio)
        return tuple(map(DualStep, video, audio))

    def __iter__(self) -> Iterator[DualStep]:
        return (self.step(i) for i in range(self.num_forwards))


def _steps(sigmas: Tensor, t: Tensor) -> Iterator[Step]:
    # Sigma is recovered from the timestep that the DiT saw, since 1 - (1 - s) is inexact below 0.5; the ratio is taken
    # from the grid (tests/parity/test_schedule.py).
    keep = sigmas[1:] / sigmas[:-1]
    factors = map(EulerFactors, (1 - t).tolist(), keep.tolist(), (1.0 - keep).tolist())
    return map(Step, sigmas[:-1], sigmas[1:], t, factors)


def shifted(base: Tensor, shift: float) -> Tensor:
    """``shift * s / (1 + (shift - 1) * s)`` in float32: 0 stays 0 and 1 stays 1."""
    return shift * base / (1 + (shift - 1) * base)


def build_dual(
    num_sigmas: int | None = None,
    *,
    video_shift: float = 12.0,
    audio_shift: float = 3.0,
    base: Sequence[float] | None = None,
) -> DualSchedule:
    """A schedule of ``num_sigmas`` points, or of the ``base`` positions of a distilled release.

    Raises ``InvalidRequest`` for too few points, so many that one shift collapses more of them than the other, or a
    ladder that a shift collapses; ``ConfigError`` for a shift or a ``base`` that no checkpoint can have.
    """
    for name, shift in (("video_shift", video_shift), ("audio_shift", audio_shift)):
        if not 0 < shift < float("inf"):
            raise ConfigError(f"{name}={shift} is not a positive number", param=name)
    if base is not None:
        positions = _checked_base(base)
        if num_sigmas is not None and num_sigmas != positions.shape[0]:
            raise InvalidRequest(
                f"num_sigmas={num_sigmas}, but this checkpoint was distilled for {positions.shape[0]} sigma points",
                hint="leave the number of steps out",
                param="num_sigmas",
            )
        # A distilled ladder is used point by point: it has no duplicates to collapse.
        video, audio = shifted(positions, video_shift), shifted(positions, audio_shift)
        for name, shift, sigmas in (("video_shift", video_shift, video), ("audio_shift", audio_shift, audio)):
            if not (sigmas[1:] < sigmas[:-1]).all():
                raise InvalidRequest(
                    f"{name}={shift:g} leaves equal neighbours of the {positions.shape[0]} sigmas in float32",
                    hint="use a shift nearer to 1, or sigmas further apart",
                    param=name,
                )
    else:
        if num_sigmas is None or num_sigmas < 2:
            raise InvalidRequest(
                f"num_sigmas={num_sigmas}: the terminal 0 is one of them, so a forward needs two",
                hint="use at least 2",
                param="num_sigmas",
            )
        positions = torch.linspace(1.0, 0.0, num_sigmas, dtype=torch.float32)
        # The shift squeezes the grid near 1, where float32 neighbours can coincide.
        video = torch.unique_consecutive(shifted(positions, video_shift))
        audio = torch.unique_consecutive(shifted(positions, audio_shift))
    if video.shape != audio.shape:
        raise InvalidRequest(
            f"num_sigmas={num_sigmas} leaves {video.shape[0]} distinct video and {audio.shape[0]} audio points",
            hint="use fewer steps: both modalities take every step together",
            param="num_sigmas",
        )
    return DualSchedule(video, audio)


def _checked_base(base: Sequence[float]) -> Tensor:
    positions = torch.tensor(list(base), dtype=torch.float32)
    decreasing = positions.ndim == 1 and bool((positions[1:] < positions[:-1]).all())
    if positions.numel() < 2 or not decreasing or positions[0] > 1 or positions[-1] != 0:
        raise ConfigError(
            f"base schedule {list(base)} must fall strictly from at most 1 to 0",
            hint="for example 1.0, 0.7, 0.4, 0.15, 0.0",
            param="base_schedule",
        )
    return positions
