"""Locked rows: rows of the target that are given, written back after every step (docs/model.md, Locked rows).

Of a checkpoint that was trained with them they are condition rows in the target's place: they stay what they are, at
their own timestep. To one that was not, a clean row among noisy ones is a sight it never had; there they are, at each
step, the given latents with the request's own noise at the step's sigma: a forward sees what it saw in training.

k locked rows, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from talkies.h3.locks import Span
from talkies.sampling.anchors import noised
from talkies.sampling.schedule import DualStep


@dataclass(frozen=True, eq=False)
class LockedRows:
    """Of one stream's tensor; k is 0 where nothing is locked. Where they stay what they are, ``rows`` are that and
    ``noise`` has no row; else ``rows`` are clean and ``noise`` [k, C] is what a step mixes them with."""

    index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # into the stream's rows
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 1))  # float32 [k, C]
    noise: Tensor = field(default_factory=lambda: torch.empty(0, 1))

    def at(self, sigma: float) -> Tensor:
        """The rows at a noise level, a float32 value; at 0 they are what is given, bit for bit."""
        if not self.noise.shape[0]:
            return self.rows
        return (1.0 - sigma) * self.rows + sigma * self.noise

    def pin(self, rows: Tensor, sigma: Tensor) -> None:
        """Writes them into ``rows`` in place. ``sigma`` is on the CPU: no step waits for the device."""
        if self.index.shape[0]:
            rows.index_copy_(0, self.index, self.at(sigma.item()))

    def to(self, device: torch.device) -> LockedRows:
        return LockedRows(self.index.to(device), self.rows.to(device), self.noise.to(device))


@dataclass(frozen=True, eq=False)
class Locks:
    """The locked rows of a request."""

    video: LockedRows = field(default_factory=LockedRows)
    audio: LockedRows = field(default_factory=LockedRows)

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor]) -> Locks:
        """From :meth:`tensors`."""
        return cls(LockedRows(*tensors[:3]), LockedRows(*tensors[3:]))

    def tensors(self) -> tuple[Tensor, ...]:
        """All six, for another process."""
        return tuple(tensor for rows in (self.video, self.audio) for tensor in (rows.index, rows.rows, rows.noise))

    def begin(self, video_rows: Tensor, audio_rows: Tensor, first: DualStep) -> None:
        """Into the first state, in place."""
        self.video.pin(video_rows, first.video.sigma)
        self.audio.pin(audio_rows, first.audio.sigma)

    def pin(self, video_rows: Tensor, audio_rows: Tensor, done: DualStep) -> None:
        """After a step, in place: the rows are at its end's sigma."""
        self.video.pin(video_rows, done.video.sigma_next)
        self.audio.pin(audio_rows, done.audio.sigma_next)

    def to(self, device: torch.device) -> Locks:
        return Locks(self.video.to(device), self.audio.to(device))


def lock_video(
    clean_rows: Tensor, noise_rows: Tensor, spans: Sequence[Span], *, num_conditions: int, is_trained: bool
) -> LockedRows:
    """From all target rows, clean and noise, [Nv, C * 4]; ``spans`` of rows are locked. ``num_conditions`` rows come
    before the target's. Where it was trained, picture is held just short of clean, as keyframes are."""
    picked = _indices(spans)
    clean, noise = clean_rows[picked].float(), noise_rows[picked]
    if is_trained:
        return LockedRows(picked + num_conditions, noised(clean, noise), noise[:0])
    return LockedRows(picked + num_conditions, clean, noise)


def lock_audio(
    clean_rows: Tensor, noise_rows: Tensor, spans: Sequence[Span], *, num_conditions: int, is_trained: bool
) -> LockedRows:
    """As :func:`lock_video`, of audio rows [Na, C]; where it was trained, sound is held clean."""
    picked = _indices(spans)
    noise = noise_rows[picked]
    return LockedRows(picked + num_conditions, clean_rows[picked].float(), noise[:0] if is_trained else noise)


def _indices(spans: Sequence[Span]) -> Tensor:
    return torch.cat([torch.arange(start, stop) for start, stop in spans])
