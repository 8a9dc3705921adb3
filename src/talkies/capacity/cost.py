"""What a request will cost, from its demand and measured step times. No torch: the server asks this, too.

A forward takes ``step_s + row_s * rows``; attention's square is absorbed, since the two measured points lie near the
sizes that are served, and every finished job corrects the whole by its own ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from talkies.capacity.demand import Demand
from talkies.h3.geometry import Geometry

# The fixed part of a forward over that of its rows, from which on a device counts as full: more requests would gain at
# most as much. A twentieth could not be found twice: there, a time that is off by 1 % moves the point by a fifth.
OVERHEAD_SHARE = 0.1
ABOVE_FLOOR = 1.3  # times the fastest forward: one that takes longer has left the floor of launches
MEASURED_S = 0.04  # of forwards of one size: those of a millisecond are timed over and over, and the fastest counts
SLOWER_SHARE = 0.15  # more seconds a row than a smaller forward's are another way of running, and no noise
LEARNING_RATE = 0.2  # of one finished job


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """``rows`` of one forward, ``num_forwards`` of all outputs together as far as a step cache runs them, ``pixels`` to
    decode (frames included)."""

    rows: int
    num_forwards: float
    pixels: int

    @property
    def row_forwards(self) -> float:
        return self.rows * self.num_forwards


def size_of(demand: Demand) -> Size:
    """What a demand's seconds depend on."""
    return Size(
        rows=demand.rows,
        num_forwards=demand.forwards_to_run,
        pixels=demand.pixels,
    )


def pixels_of(geometry: Geometry) -> int:
    return geometry.width * geometry.height * geometry.num_frames


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Measured figures of one worker; the worker sends a new one whenever it has learned something."""

    step_s: float  # of a forward, whatever its rows
    row_s: float  # of each row of a forward
    pixel_s: float  # of decoding and writing one pixel of one frame
    begin_s: float  # of media, text and packing
    ratio: float = 1.0  # what finished jobs took, over what was predicted
    full_rows: int | None = None  # of a device that is full, where forwards of several requests were measured

    @classmethod
    def fit(cls, points: Sequence[tuple[int, float]], *, pixel_s: float, begin_s: float) -> CostModel:
        """From (rows, seconds) of measured forwards, one or more."""
        few, many = min(points), max(points)
        if many[0] > few[0]:
            # Timer noise may make the larger one faster; a slope of nothing would promise free rows.
            row_s = max((many[1] - few[1]) / (many[0] - few[0]), 0.1 * many[1] / many[0])
        else:
            row_s = many[1] / many[0]
        return cls(step_s=max(0.0, few[1] - row_s * few[0]), row_s=row_s, pixel_s=pixel_s, begin_s=begin_s)

    @property
    def max_step_rows(self) -> int:
        """Rows from which on the fixed share of a step is negligible: the device is full."""
        if self.full_rows is not None:
            return self.full_rows
        return max(1, round(self.step_s / (OVERHEAD_SHARE * self.row_s)))

    def forward_s(self, rows: int) -> float:
        return self.step_s + self.row_s * rows

    def raw_seconds(self, size: Size) -> float:
        """Without the correction."""
        return self.begin_s + size.num_forwards * self.forward_s(size.rows) + size.pixels * self.pixel_s

    def seconds(self, size: Size) -> float:
        """From begin to file, on an idle worker."""
        return self.ratio * self.raw_seconds(size)

    def left_s(self, *, num_forwards: float, step_s: float, pixels: int) -> float:
        """What is left of a job whose forwards take ``step_s`` each at present, with so many pixels to decode."""
        return num_forwards * step_s + pixels * self.pixel_s

    def learned(self, size: Size, took_s: float) -> CostModel:
        """The model after a job that had the worker to itself for ``took_s`` seconds in all."""
        seen = min(10.0, max(0.1, took_s / self.raw_seconds(size)))
        return replace(self, ratio=(1 - LEARNING_RATE) * self.ratio + LEARNING_RATE * seen)


def saturation_samples(
    measure: Callable[[int], tuple[int, float]], most: int, longest_s: float = math.inf
) -> Iterator[tuple[int, float]]:
    """(rows, seconds) that :func:`saturation_rows` wants: ``measure(n)`` of forwards of n equal requests.

    Twice as many each time, up to ``most``, until one is twice as large as the device needs to be full (a line is known
    where there are points on both sides) or takes ``longest_s``; then two between, for a chain of kernels that suddenly
    fills the device has a knee, which doubling alone may miss by a quarter. Then all once more: whatever else this
    machine does for a second disturbs short forwards, and the shorter time of a size counts.
    """
    count, samples, tried = 1, [measure(1)], {1}
    yield samples[-1]
    while count < most and samples[-1][1] < longest_s:
        count = min(2 * count, most)
        tried.add(count)
        samples.append(measure(count))
        yield samples[-1]
        if 2 * saturation_rows(samples) <= samples[-1][0]:
            break
    between = {count * 3 // 4, count * 3 // 8} - tried - {0}
    for count in (*sorted(between), *sorted(tried | between)):
        yield measure(count)


def saturation_rows(samples: Sequence[tuple[int, float]]) -> int:
    """From (rows, seconds) of forwards of 1, 2, 4 .. equal requests: the rows from which on the fixed part is below
    ``OVERHEAD_SHARE`` of the rest. More than any sample has where all of them are smaller.

    A small forward takes what its longest chain of kernels takes, however few its rows; only from some size on does
    each further row cost its share. Beyond that floor seconds are fitted by a line over all samples, by their relative
    errors: no pair of samples may decide it, since one time may be off.

    Where larger forwards are run in another, slower way (too large for a CUDA graph, say), the device counts as full at
    the last one before.
    """
    best: dict[int, float] = {}
    for rows, seconds in samples:
        best[rows] = min(seconds, best.get(rows, seconds))
    points = sorted(best.items())
    rate = max(rows / seconds for rows, seconds in points) / (1 + SLOWER_SHARE)
    last = max(i for i, (rows, seconds) in enumerate(points) if rows / seconds >= rate)
    if last + 1 < len(points):
        return min(points[last][0], saturation_rows(points[: last + 1]))
    floor = min(seconds for _, seconds in points)
    above = [point for point in points if point[1] >= ABOVE_FLOOR * floor]
    fixed, slope = _line(above if len(above) > 1 else points[-2:])
    if slope <= 0:
        return points[-1][0]  # another request still costs nothing: as many as were tried
    return max(points[0][0], round(max(fixed / OVERHEAD_SHARE, floor / (1 + OVERHEAD_SHARE)) / slope))


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """``seconds = fixed + slope * rows`` with the least sum of squared relative errors."""
    if len(points) == 1:
        return 0.0, 0.0
    # Of u = fixed / seconds + slope * rows / seconds, which should be 1.
    pairs = [(1 / seconds, rows / seconds) for rows, seconds in points]
    aa, bb = sum(a * a for a, _ in pairs), sum(b * b for _, b in pairs)
    ab, a1, b1 = sum(a * b for a, b in pairs), sum(a for a, _ in pairs), sum(b for _, b in pairs)
    det = aa * bb - ab * ab
    return (a1 * bb - b1 * ab) / det, (b1 * aa - a1 * ab) / det


def predict(model: CostModel | None, demand: Demand) -> float | None:
    """Seconds of what ``demand`` counts; None before the first measurement."""
    return None if model is None else model.seconds(size_of(demand))
