"""What is kept of a job and what goes with it, and the pages of the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from talkies.engine.port.service import Job, JobEvent
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService
from tests.server.jobs.test_lifecycle import files_of, until


class FailsAfterTheFirst(FakeService):
    """Writes its first output, and then the second one fails."""

    def _make(self, job: Job) -> JobEvent:
        job.outputs[0].write_bytes(b"whole and useless")
        return JobEvent(job_id=job.id, kind="failed", error={"code": "non_finite", "message": "NaN", "status": 500})


def test_what_a_failed_job_wrote_goes_with_its_end(tmp_path: Path) -> None:
    with serving(tmp_path, FailsAfterTheFirst()) as server:
        job = server.wait(server.create("a ball", n=2)["id"])
        assert job["status"] == "failed"
        until(lambda: files_of(server) == [])
        assert server.http.get(f"/v1/videos/{job['id']}/content?variant=0").status_code == 422


def test_a_page_says_whether_there_is_another(server: Server) -> None:
    made = [server.create(f"clip {i}")["id"] for i in range(4)]

    def page(**query: Any) -> tuple[list[str], bool]:
        body = server.http.get("/v1/videos", params={"order": "asc", **query}).json()
        return [job["id"] for job in body["data"]], body["has_more"]

    assert page(limit=3) == (made[:3], True)
    assert page(limit=4) == (made, False)
    assert page(limit=5) == (made, False)
    assert page(limit=2, after=made[0]) == (made[1:3], True)
    assert page(limit=2, after=made[1]) == (made[2:], False)
    assert page(limit=2, after=made[3]) == ([], False)
    assert page(limit=0) == ([], False)


def test_a_sweep_takes_whatever_is_not_a_jobs_folder_and_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with serving(tmp_path / "data") as server:
        done = server.wait(server.create("a ball")["id"])
        folder = server.coordinator.store.peek(done["id"]).folder  # type: ignore[union-attr]
        artifacts = server.coordinator.config.artifacts
        (artifacts / "a file").touch()
        (artifacts / "a link").symlink_to(outside)
        (artifacts / "a folder").mkdir()
        (artifacts / "a folder" / "0.mp4").touch()
        server.stop()
    with serving(tmp_path / "data") as server:
        assert files_of(server) == [f"artifacts/{folder}"]
        assert server.http.get(done["url"]).status_code == 200
    assert (outside / "kept").exists()


def test_a_folder_in_the_place_of_a_clip_is_not_served(server: Server) -> None:
    job = server.wait(server.create("a ball")["id"])
    folder = server.coordinator.config.artifacts / server.coordinator.store.peek(job["id"]).folder  # type: ignore[union-attr]
    (folder / "0.mp4").unlink()
    (folder / "0.mp4").mkdir()
    for variant in ("", "?variant=0", "?variant=thumbnail", "?variant=spritesheet"):
        answer = server.http.get(f"/v1/videos/{job['id']}/content{variant}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
