"""Seconds of each stage of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


@contextmanager
def timed(stages: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of its block to a stage, also when the block raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = stages.get(name, 0.0) + time.perf_counter() - start


def sum_of(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The seconds of each stage over all parts."""
    return {name: sum(part.get(name, 0.0) for part in parts) for part in parts for name in part}
