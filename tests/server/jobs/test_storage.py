"""Data folders that cannot be used, and disks that fill up while jobs are kept on them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talkies.engine.port.messages import WorkerOptions
from talkies.errors import ConfigError
from talkies.server.app import create_app
from talkies.server.config import ServerConfig
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService


def a_file(folder: Path) -> None:
    folder.write_text("not a folder")


def below_a_file(folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.write_text("not a folder")


def no_database(folder: Path) -> None:
    folder.mkdir()
    (folder / "jobs.sqlite").write_text("this is no database, " * 100)


def damaged_pages(folder: Path) -> None:
    with serving(folder) as server:
        for i in range(20):
            server.create(f"slow {i}")
        server.stop()
    database = folder / "jobs.sqlite"
    with sqlite3.connect(database) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(database.read_bytes())
    content[4096 : 3 * 4096] = b"\xee" * (2 * 4096)
    database.write_bytes(content)


def somebody_elses_table(folder: Path) -> None:
    folder.mkdir()
    with sqlite3.connect(folder / "jobs.sqlite") as db:
        db.execute("CREATE TABLE jobs (a)")


def artifacts_is_a_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "artifacts").touch()


@pytest.mark.parametrize(
    "spoil", [a_file, below_a_file, no_database, damaged_pages, somebody_elses_table, artifacts_is_a_file]
)
def test_a_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "parent" / "data"
    folder.parent.mkdir()
    spoil(folder)
    for _ in range(2):  # the second time, too: nothing stays locked
        with pytest.raises(ConfigError) as caught:
            create_app(FakeService(), ServerConfig(data_dir=folder))
        assert caught.value.param == "data_dir"
        assert str(folder) in caught.value.message
        assert "--data-dir" in (caught.value.hint or "")


def test_a_wrong_word_for_the_operator_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a host name nor a network"):
        ServerConfig(data_dir=tmp_path, allow_hosts=("http://media.internal/",))
    with pytest.raises(ConfigError, match="shortest-remaining"):
        WorkerOptions(config=None, policy="lifo")  # type: ignore[arg-type]


def full_until_freed(server: Server, folder: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    def write(*args: Any) -> Any:
        if any(folder.glob("*.mp4")):
            raise sqlite3.OperationalError("database or disk is full")
        return real(*args)

    return write


def test_a_clip_can_be_deleted_from_a_full_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    job = server.wait(server.create("a ball")["id"])
    store, config = server.coordinator.store, server.coordinator.config
    folder = config.artifacts / store.peek(job["id"]).folder  # type: ignore[union-attr]
    monkeypatch.setattr(store, "remove", full_until_freed(server, folder, store.remove))
    assert server.http.delete(f"/v1/videos/{job['id']}").status_code == 200
    assert server.http.get(f"/v1/videos/{job['id']}").status_code == 404


def test_clips_expire_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, ttl_s=3600) as server:
        job = server.wait(server.create("a ball")["id"])
        store, config = server.coordinator.store, server.coordinator.config
        folder = config.artifacts / store.peek(job["id"]).folder  # type: ignore[union-attr]
        monkeypatch.setattr(store, "expire", full_until_freed(server, folder, store.expire))
        with sqlite3.connect(config.database) as db:
            db.execute("UPDATE jobs SET expires_at = ?", (time.time() - 1,))
        db.close()
        server.coordinator.sweep()
        assert store.peek(job["id"]) is None


def test_a_store_that_cannot_be_written_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    job = server.create("slow")
    monkeypatch.setattr(server.coordinator.store, "remove", full)
    answer = server.http.delete(f"/v1/videos/{job['id']}")
    assert answer.status_code == 500
    assert "is the data folder's disk full?" in answer.json()["error"]["message"]
    monkeypatch.undo()
    assert server.http.delete(f"/v1/videos/{job['id']}").status_code == 200


def test_a_clock_that_was_set_back_gives_no_negative_times(server: Server) -> None:
    job = server.create("slow", return_stage_metrics=True)
    server.wait(job["id"], "in_progress")
    later = time.time() + 3600
    with sqlite3.connect(server.coordinator.config.database) as db:
        db.execute("UPDATE jobs SET created_at = ?, started_at = ?", (later + 1, later))
    server.service.release.set()
    done = server.wait(job["id"])
    assert done["status"] == "completed"
    assert 0.0 < done["inference_time_s"] < 60.0  # by another clock
    assert 0.0 <= done["metrics"]["queue_wait_s"] < 60.0
    sums = [line for line in server.http.get("/metrics").text.splitlines() if "_s_sum" in line or "seconds_sum" in line]
    assert sums
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in sums)
