"""What a disk that takes nothing more does to jobs, answers and files."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from talkies.server.jobs import artifacts
from tests.server.conftest import Server
from tests.server.jobs.test_lifecycle import files_of, until


def no_record(*_: Any, **__: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def no_file(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("prompt", "write"), [("a ball", "complete"), ("fail please", "fail")])
def test_sync_ends_with_an_error_when_its_end_cannot_be_recorded_and_leaves_no_job(
    server: Server, monkeypatch: pytest.MonkeyPatch, prompt: str, write: str
) -> None:
    monkeypatch.setattr(server.coordinator.store, write, no_record)
    answer = server.http.post("/v1/videos/sync", json={"prompt": prompt})
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert "the end of the job cannot be recorded: database or disk is full" in message
    assert "is the data folder's disk full?" in message
    until(lambda: files_of(server) == [])
    assert server.coordinator.store.counts() == {}
    assert server.coordinator.live.all() == {}


def test_a_sync_job_that_not_even_can_be_deleted_goes_at_the_next_sweep(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server.coordinator.store, "complete", no_record)
        patch.setattr(server.coordinator.store, "remove", no_record)
        assert server.http.post("/v1/videos/sync", json={"prompt": "a ball"}).status_code == 500
        until(lambda: files_of(server) == [])
    assert server.coordinator.store.counts() == {"in_progress": 1}
    server.coordinator.sweep()
    assert server.coordinator.store.counts() == {}
    assert files_of(server) == []


@pytest.mark.parametrize(
    ("variant", "writer"), [("spritesheet", "_write_spritesheet"), ("thumbnail", "_write_thumbnail")]
)
def test_a_picture_that_the_disk_refuses_is_an_error_that_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, variant: str, writer: str
) -> None:
    job = server.wait(server.create("a ball")["id"])
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, f"_write_{variant}", no_file)
        answer = server.http.get(f"/v1/videos/{job['id']}/content?variant={variant}")
        assert answer.status_code == 500
        assert f"the {variant} cannot be written: No space left on device" in answer.json()["error"]["message"]
    folder = server.coordinator.config.artifacts
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["0.mp4"]
    assert server.http.get(f"/v1/videos/{job['id']}/content?variant={variant}").status_code == 200


def test_durations_are_those_of_a_clock_that_nobody_sets(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other clock jumps by two hours, forwards and back, while a job runs."""
    import time

    real, shift = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])
    for jump in (7200.0, -7200.0):
        server.service.release.clear()
        job = server.create("slow", return_stage_metrics=True)
        server.wait(job["id"], "in_progress")
        shift[0] += jump
        server.service.release.set()
        done = server.wait(job["id"])
        assert done["status"] == "completed"
        assert 0 < done["inference_time_s"] < 60
        assert 0 <= done["metrics"]["queue_wait_s"] < 60
    text = server.http.get("/metrics").text
    total = next(line for line in text.splitlines() if line.startswith("vllm_omni:e2e_request_latency_s_sum"))
    assert 0 < float(total.split()[-1]) < 60


def test_a_clip_of_an_earlier_version_keeps_the_duration_of_its_stamps(server: Server) -> None:
    job = server.wait(server.create("a ball")["id"])
    record = server.coordinator.store.peek(job["id"])
    assert record is not None
    assert record.facts.took_s == job["inference_time_s"]
    with sqlite3.connect(Path(server.coordinator.config.database)) as db:
        db.execute("UPDATE jobs SET facts = json_remove(facts, '$.took_s'), started_at = completed_at - 5")
    db.close()
    assert server.http.get(f"/v1/videos/{job['id']}").json()["inference_time_s"] == 5.0
