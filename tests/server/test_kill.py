"""kill -9 at random moments, again and again: no accepted job is lost, none ends twice, running ones go on."""

from __future__ import annotations

import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def process(data_dir: Path, port: int) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "tests.server.fakeserver", str(data_dir), str(port)]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as http:
            for _ in range(600):
                assert child.poll() is None, "the server did not start"
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.02)
            yield http
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_kill_9_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    accepted: dict[str, str] = {}  # Idempotency-Key -> id
    deleted: set[str] = set()
    for attempt in range(5):
        with process(tmp_path, port) as http:
            for i in range(8):
                key = f"{attempt}-{i}"
                answer = http.post("/v1/videos", json={"prompt": f"clip {key}"}, headers={"Idempotency-Key": key})
                accepted[key] = answer.json()["id"]
                if i == 3:
                    http.delete(f"/v1/videos/{accepted[key]}")
                    deleted.add(accepted[key])
            time.sleep(chance.uniform(0.0, 0.3))
    with process(tmp_path, port) as http:
        deadline = time.monotonic() + 20
        while http.get("/load").json()["server_load"]:
            assert time.monotonic() < deadline, "jobs stay unfinished"
            time.sleep(0.02)
        listed = []
        page = http.get("/v1/videos", params={"limit": 100, "order": "asc"}).json()
        listed += page["data"]
        wanted = [job_id for job_id in accepted.values() if job_id not in deleted]
        assert [job["id"] for job in listed] == wanted
        assert {job["status"] for job in listed} == {"completed"}
        for job in listed:
            assert http.get(job["url"]).status_code == 200
        for key, job_id in list(accepted.items())[:3]:
            again = http.post("/v1/videos", json={"prompt": f"clip {key}"}, headers={"Idempotency-Key": key})
            assert again.json()["id"] == job_id
        for job_id in deleted:
            assert http.get(f"/v1/videos/{job_id}").status_code == 404
        folders = [path for name in ("artifacts", "uploads", "resume") for path in (tmp_path / name).iterdir()]
        assert len(folders) == len(wanted), "leftovers of killed servers"
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT COUNT(*) FROM jobs WHERE attempts > 0").fetchone()[0] > 0, "nothing was interrupted"


def test_a_job_that_kills_its_server_is_given_up(tmp_path: Path) -> None:
    from tests.server.conftest import serving

    with serving(tmp_path) as server:
        job = server.create("slow")
        server.wait(job["id"], "in_progress")
        server.stop()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("UPDATE jobs SET attempts = 4, status = 'in_progress'")
    with serving(tmp_path) as server:
        ended = server.http.get(f"/v1/videos/{job['id']}").json()
        assert (ended["status"], ended["error"]["code"]) == ("failed", "server_restarted")
        assert server.service.jobs == {}


def test_a_crash_counts_as_an_attempt_and_a_stop_does_not(tmp_path: Path) -> None:
    from tests.server.conftest import serving

    def attempts() -> list[int]:
        with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
            return [count for (count,) in db.execute("SELECT attempts FROM jobs ORDER BY seq")]

    with serving(tmp_path) as server:
        job = server.create("slow")
        server.wait(job["id"], "in_progress")
        server.create("slow, too")  # waits: whatever happens is not its fault
        server.stop()
    assert attempts() == [0, 0]
    for crashes in (1, 2):
        with sqlite3.connect(tmp_path / "jobs.sqlite") as db:  # as a killed server leaves it
            db.execute("UPDATE jobs SET status = 'in_progress' WHERE id = ?", (job["id"],))
        with serving(tmp_path) as server:
            server.stop()
        assert attempts() == [crashes, 0]
