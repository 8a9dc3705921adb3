"""Places and times of arrival, from the order in which jobs will run and what each of them has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ahead:
    """One job of the line. ``left_s``: seconds that it needs by itself, None where nobody knows."""

    left_s: float | None
    begun: bool = False
    priority: int = 0


def places(line: Sequence[Ahead]) -> list[int | None]:
    """Among those that have not begun, 1 is next; None for those that have."""
    found: list[int | None] = []
    place = 0
    for job in line:
        place += not job.begun
        found.append(None if job.begun else place)
    return found


def etas_s(line: Sequence[Ahead], *, policy: str, together: int = 1) -> list[float | None]:
    """Seconds until each job ends if nobody else comes; the first ``together`` share their forwards.

    With ``fair`` all of one priority take turns, so a job waits for each other one at most as long as it runs itself.
    Whoever joins a shared forward later gains by it, so for those waiting this is the latest time.
    """
    if policy == "fair":
        return [_fair_s(job, line) for job in line]
    found: list[float | None] = [job.left_s for job in line[:together]]
    known = [left_s for left_s in found if left_s is not None]
    clock = max(known, default=0.0) if len(known) == len(found) else None
    for job in line[together:]:
        clock = None if clock is None or job.left_s is None else clock + job.left_s
        found.append(clock)
    return found


def _fair_s(job: Ahead, line: Sequence[Ahead]) -> float | None:
    total = 0.0
    for other in line:
        if other.priority < job.priority:
            continue
        if other.left_s is None or job.left_s is None:
            return None
        total += other.left_s if other.priority > job.priority else min(other.left_s, job.left_s)
    return total
