"""What a worker counts and measures about itself, sent now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from talkies.capacity.ram import rss_bytes
from talkies.engine.port.messages import Message, Stats

STATS_EVERY_S = 1.0
COUNTERS = (
    *("forwards", "rows", "shared_forwards", "skipped_forwards"),
    *("finished", "failed", "cancelled", "resumed", "previews"),
)


class Counts:
    """``counts["forwards"] += 1``; :meth:`say` sends all of them, not too often."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._values = dict.fromkeys(COUNTERS, 0.0)
        self._said_at = 0.0

    def add(self, name: str, amount: float = 1.0) -> None:
        self._values[name] += amount

    def say(self, *, now: bool = False, **gauges: float) -> None:
        if now or time.monotonic() - self._said_at > STATS_EVERY_S:
            self._said_at = time.monotonic()
            totals = {f"{name}_total": value for name, value in self._values.items()}
            self._send(Stats({**totals, "rss_bytes": float(rss_bytes()), **gauges}))
