"""Figures of a service over the lives of its workers: what counts goes on counting when a worker is replaced."""

from __future__ import annotations

import threading


class LifetimeTotals:
    """Thread-safe. Names ending in ``_total`` count since a worker's start; the others are values of now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[str, float] = {}
        self._past: dict[str, float] = {}
        self._own = {"worker_restarts_total": 0.0, "worker_hangs_total": 0.0}

    def said(self, values: dict[str, float]) -> None:
        """By the worker."""
        with self._lock:
            self._current = values

    def hung(self) -> None:
        with self._lock:
            self._own["worker_hangs_total"] += 1

    def replaced(self) -> None:
        with self._lock:
            self._own["worker_restarts_total"] += 1

    def ended(self) -> None:
        """The worker is gone."""
        with self._lock:
            for name, value in self._current.items():
                if name.endswith("_total"):
                    self._past[name] = self._past.get(name, 0.0) + value
            self._current = {}

    def values(self) -> dict[str, float]:
        with self._lock:
            values = {**self._current, **self._own}
            for name, value in self._past.items():
                values[name] = values.get(name, 0.0) + value
        return values
