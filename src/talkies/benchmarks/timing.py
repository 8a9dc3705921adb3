"""Times and peaks on a device, and a clock that a run must not outlast."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch

GIB = 2**30


def synchronize(device: torch.device) -> None:
    """Waits for a GPU; a CPU is done when it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device, *, repeats: int, warmups: int = 1) -> list[float]:
    """Seconds of each of ``repeats`` runs, by device events on a GPU."""
    for _ in range(warmups):
        run()
    synchronize(device)
    if device.type != "cuda":
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        return seconds
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    synchronize(device)
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def median_of(run: Callable[[], object], device: torch.device, *, repeats: int, warmups: int = 1) -> float:
    """The median of :func:`seconds_of`."""
    return statistics.median(seconds_of(run, device, repeats=repeats, warmups=warmups))


def in_turn(
    first: Callable[[], object], second: Callable[[], object], device: torch.device, *, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of two runs of some length, one after the other without a break, ``repeats`` times.

    A card at its power limit clocks by its temperature and by what it did a second ago: two things are comparable
    only where both see the same card.
    """
    both = [(timed(first, device), timed(second, device)) for _ in range(repeats)]
    synchronize(device)
    return [one() for one, _ in both], [other() for _, other in both]


def timed(run: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Runs it. What it returns gives the seconds it took, once the device is done with it."""
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        return lambda: seconds
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    return lambda: start.elapsed_time(stop) / 1e3


def chained(
    runs: Sequence[tuple[str, Callable[[], object]]], device: torch.device, *, repeats: int, warmups: int = 2
) -> dict[str, float]:
    """Median seconds of each, run one after another in turn, so that all of them see a card that is busy and warm."""
    for _ in range(warmups):
        for _, run in runs:
            run()
    marks = [(name, timed(run, device)) for _ in range(repeats) for name, run in runs]
    synchronize(device)
    return {name: statistics.median(seconds) for name, seconds in by_name(marks).items()}


def by_name(marks: Iterable[tuple[str, Callable[[], float]]]) -> dict[str, list[float]]:
    """Seconds of what :func:`timed` ran, under their names; the device must be done."""
    found: dict[str, list[float]] = {}
    for name, seconds in marks:
        found.setdefault(name, []).append(seconds())
    return found


@dataclass
class Peak:
    """Bytes of the device's allocator: at the start, and the most while the block ran."""

    start: int = 0
    most: int = 0

    @property
    def gib(self) -> float:
        return self.most / GIB


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """The allocator's peak inside the block; zeros on a CPU."""
    seen = Peak()
    if device.type == "cuda":
        gc.collect()  # the cache stays: what it holds is not counted, and filling it again would be timed
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        seen.start = torch.cuda.memory_allocated(device)
    yield seen
    if device.type == "cuda":
        synchronize(device)
        seen.most = torch.cuda.max_memory_allocated(device)


def free(device: torch.device) -> None:
    """Gives what nobody holds back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


@dataclass
class Clock:
    """Seconds that are left of a run that must end by itself."""

    limit_s: float
    began: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return self.limit_s - self.spent_s
