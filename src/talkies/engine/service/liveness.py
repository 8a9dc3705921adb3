"""How long to believe in a worker, and how soon to start the next one. No clock of its own: callers tell the time.

A dead process is seen by the system. A hung one (a lost interrupt, a deadlock, a stuck file system) is seen here: it
is busy and gives no sign of life for far longer than what it said its unit would take.
"""

from __future__ import annotations

HANG_TIMEOUT_S = 300.0  # floor of the patience, for stages whose length nobody predicts
START_TIMEOUT_S = 3600.0  # of silence while it loads: the largest component of a slow disk, read without a word
HANG_FACTOR = 20.0  # times the predicted seconds of the unit in work
PUMP_GAP_S = 5.0  # if we ourselves did not run for so long, the whole machine was away, not the worker
MAX_FAILED_STARTS = 5  # in a row, before the service gives up
BACKOFF_S, MAX_BACKOFF_S = 0.2, 30.0
STABLE_AFTER_S = 60.0  # a worker that lived so long did not die of its start


class Liveness:
    """Over one worker. An idle one is let be: it has nothing to say until it is given a job. So is one that has not
    said what it is: a model hub may have to send it everything."""

    def __init__(self, timeout_s: float, now: float, *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._expected_s = 0.0
        self._busy = self._loading = False
        self._heard_at = self._checked_at = now

    def heard(self, now: float, *, busy: bool | None = None, expected_s: float | None = None) -> None:
        """Any message. ``expected_s``: predicted seconds of the unit that begins."""
        self._heard_at = now
        self._busy = self._busy if busy is None else busy
        self._expected_s = self._expected_s if expected_s is None else expected_s

    def loads(self, now: float, loading: bool) -> None:
        """It begins to read weights, or it is ready."""
        self._heard_at, self._loading = now, loading

    def asked(self, now: float) -> None:
        """It was given what it must answer. One that is busy is being waited for already."""
        if not self._busy:
            self._busy, self._heard_at = True, now

    @property
    def patience_s(self) -> float:
        if self._loading:
            return self._start_timeout_s
        return max(self._timeout_s, HANG_FACTOR * self._expected_s)

    def left_s(self, now: float) -> float | None:
        """Until it counts as hung; None while it is not watched."""
        return self._heard_at + self.patience_s - now if self._busy or self._loading else None

    def silent_s(self, now: float, *, waited_s: float) -> float | None:
        """How long it has been silent if that is too long. Ask after reading what it said.

        ``waited_s`` is how long the caller meant to wait since it asked last.
        """
        gap, self._checked_at = now - self._checked_at, now
        if gap > waited_s + PUMP_GAP_S:
            self._heard_at = now
        left_s = self.left_s(now)
        return now - self._heard_at if left_s is not None and left_s <= 0 else None


class Starts:
    """When the next worker may start, and when there is no point any more."""

    def __init__(self) -> None:
        self.at = 0.0
        self._failed = 0
        self._failures_in_row = 0

    def worked(self) -> None:
        """It became ready."""
        self._failed = 0

    def proved(self) -> None:
        """It finished a job."""
        self._failures_in_row = 0

    def ended(self, now: float, *, was_ready: bool, age_s: float) -> int:
        """A worker ended by itself, or could not be started: later and later after each. Returns failed starts."""
        if age_s > STABLE_AFTER_S:
            self._failures_in_row = 0
        self._failures_in_row += 1
        self._failed = 0 if was_ready else self._failed + 1
        self.at = now + min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (self._failures_in_row - 1))
        return self._failed
