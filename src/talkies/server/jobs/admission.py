"""Who gets into the queue. Refusals are 429 with a Retry-After that is an estimate, not a constant."""

from __future__ import annotations

from dataclasses import dataclass

from talkies.errors import Busy
from talkies.server.config import ServerConfig

FALLBACK_JOB_S = 10.0  # before the first measured step


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What is waiting and running; ``of_owner`` counts both for one key."""

    waiting: int
    running: int
    waiting_s: float
    of_owner: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The rule for one POST; ``predicted_s`` is the cost of the job that wants in, where it is known."""

    config: ServerConfig
    predicted_s: float | None

    def check(self, load: Load) -> None:
        """Raises ``Busy``."""
        config = self.config
        mean_s = load.waiting_s / load.waiting if load.waiting and load.waiting_s else self.predicted_s
        one_job_s = mean_s or FALLBACK_JOB_S
        if config.max_jobs_per_key is not None and load.of_owner >= config.max_jobs_per_key:
            raise _busy(
                f"this key has {load.of_owner} unfinished jobs, its limit is {config.max_jobs_per_key}", one_job_s
            )
        if load.waiting >= config.max_queue:
            raise _busy(f"{load.waiting} jobs are waiting, the limit is {config.max_queue}", one_job_s)
        if config.max_queue_s is not None and load.waiting and load.waiting_s + one_job_s > config.max_queue_s:
            over_s = load.waiting_s + one_job_s - config.max_queue_s
            raise _busy(
                f"the queue holds {load.waiting_s:.0f} s of work, the limit is {config.max_queue_s:.0f}", over_s
            )


def _busy(message: str, retry_after_s: float) -> Busy:
    seconds = max(1, round(retry_after_s))
    error = Busy(message, hint=f"try again in about {seconds} s", param="queue")
    error.retry_after_s = seconds  # type: ignore[attr-defined]
    return error
