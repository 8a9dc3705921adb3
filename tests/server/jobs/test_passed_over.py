"""What a client reads of a job that has begun and now waits for others."""

from __future__ import annotations

from talkies.engine.port.service import JobEvent
from tests.server.conftest import Server


def test_a_job_that_is_passed_over_reads_queued_and_paused_until_its_next_step(server: Server) -> None:
    def seen() -> tuple[str, bool, int | None]:
        job = server.http.get(f"/v1/videos/{job_id}").json()
        return job["status"], job["paused"], job["queue_position"]

    job_id = server.create("slow ball")["id"]
    server.wait(job_id, "in_progress")
    assert seen() == ("in_progress", False, None)
    server.service._on_event(JobEvent(job_id=job_id, kind="queued"))
    assert seen() == ("queued", True, None)
    server.service._on_event(JobEvent(job_id=job_id, kind="progress", stage="denoise", step=1, num_steps=9))
    assert seen() == ("in_progress", False, None)
