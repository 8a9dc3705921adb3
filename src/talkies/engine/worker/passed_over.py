"""Which begun jobs are being passed over: a user who watches one should read that it waits."""

from __future__ import annotations

import time

PAUSED_AFTER_S = 1.0  # a begun job that others have passed for so long is shown as waiting


class Turns:
    def __init__(self) -> None:
        self._served_at: dict[str, float] = {}  # 0.0 once shown as waiting

    def served(self, ids: tuple[str, ...]) -> None:
        self._served_at.update(dict.fromkeys(ids, time.monotonic()))

    def forget(self, job_id: str) -> None:
        self._served_at.pop(job_id, None)

    def passed_over(self, ids: tuple[str, ...]) -> list[str]:
        """Those to be shown as waiting now, each once until it is served again; ``ids`` are in work."""
        now = time.monotonic()
        late = [
            job_id
            for job_id, served_at in self._served_at.items()
            if served_at and job_id not in ids and now - served_at > PAUSED_AFTER_S
        ]
        self._served_at.update(dict.fromkeys(late, 0.0))
        return late
