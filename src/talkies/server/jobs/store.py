"""The jobs, in SQLite: they outlive the process that accepted them.

One writer: a file lock keeps a second server out of the folder, and one connection behind one mutex does every
transaction. States change by compare-and-set, so whoever loses a race learns it from the answer: a job deleted while
it ends stays deleted, and nothing finishes twice.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from talkies.engine.port.facts import Facts
from talkies.errors import ConfigError
from talkies.server.errors import Conflict, Gone, NotFound
from talkies.server.jobs.admission import Admission, Load
from talkies.server.jobs.data_folder import lock, usable
from talkies.server.jobs.record import SCHEMA, SCHEMA_VERSION, JobRecord, Status, encode, from_row

TOMBSTONES_KEPT = 100_000  # expired ids that still answer 410; older ones are 404


class JobStore:
    """Thread-safe. Times are unix seconds."""

    def __init__(self, path: Path) -> None:
        with usable(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._guard = lock(path.with_suffix(".lock"))
        self._mutex = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._db.row_factory = sqlite3.Row
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(
                f"{path} cannot be used: {error}",
                # Not "remove it": a server that knows no jobs sweeps their clips away.
                hint="use another --data-dir; the clips are in artifacts/ of this one",
                param="data_dir",
            ) from None
        except ConfigError:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(" ".join(damage.split()))
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise ConfigError(
                f"{path} has version {version}, this server writes {SCHEMA_VERSION}",
                hint="use another --data-dir, or the version of talkies that made it",
                param="data_dir",
            )

    def close(self) -> None:
        with self._mutex:
            self._db.close()
        os.close(self._guard)

    def insert(self, job: JobRecord, admission: Admission) -> tuple[JobRecord, bool]:
        """(the job, True), or the earlier job with its Idempotency-Key and False.

        Raises ``Busy`` when ``admission`` refuses, ``Conflict`` when the key came with another request. Count, check
        and insert are one transaction: two POSTs cannot take the last place together.
        """
        with self._transaction() as db:
            if job.idempotency_key is not None:
                row = db.execute(
                    "SELECT * FROM jobs WHERE owner = ? AND idempotency_key = ?", (job.owner, job.idempotency_key)
                ).fetchone()
                if row is not None:
                    earlier = from_row(row)
                    if earlier.fingerprint != job.fingerprint:
                        raise Conflict(
                            "this Idempotency-Key came with another request",
                            hint="use a new key for a new request",
                            param="Idempotency-Key",
                        )
                    return earlier, False
            admission.check(self._load(db, job.owner))
            values = {
                name: encode(name, getattr(job, name)) for name in JobRecord.__dataclass_fields__ if name != "seq"
            }
            names = ", ".join(values)
            marks = ", ".join("?" * len(values))
            cursor = db.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", tuple(values.values()))
            row = db.execute("SELECT * FROM jobs WHERE seq = ?", (cursor.lastrowid,)).fetchone()
            return from_row(row), True

    def get(self, job_id: str, owner: str) -> JobRecord:
        """Raises ``NotFound`` (also for another owner's job: ids are not confirmed) and ``Gone``."""
        with self._read() as db:
            row = db.execute("SELECT * FROM jobs WHERE id = ? AND owner = ?", (job_id, owner)).fetchone()
            expired = (
                row is None
                and db.execute("SELECT 1 FROM expired WHERE id = ? AND owner = ?", (job_id, owner)).fetchone()
            )
        if expired or (row is not None and row["expires_at"] is not None and row["expires_at"] <= time.time()):
            raise Gone(f"Video {job_id} has expired", hint="make it again", param="video_id")
        if row is None:
            raise NotFound("Video not found", hint="check the id and the API key", param="video_id")
        return from_row(row)

    def peek(self, job_id: str) -> JobRecord | None:
        with self._read() as db:
            row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else from_row(row)

    def page(self, owner: str, *, after: str | None, limit: int, order: str) -> tuple[list[JobRecord], bool]:
        """(jobs, has_more), by the order of acceptance. An unknown ``after`` gives an empty page."""
        newest_first = order == "desc"
        query, values = "owner = ? AND (expires_at IS NULL OR expires_at > ?)", [owner, time.time()]
        with self._read() as db:
            if after is not None:
                row = db.execute("SELECT seq FROM jobs WHERE id = ? AND owner = ?", (after, owner)).fetchone()
                if row is None:
                    return [], False
                query += f" AND seq {'<' if newest_first else '>'} ?"
                values.append(row["seq"])
            rows = db.execute(
                f"SELECT * FROM jobs WHERE {query} ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT ?",
                (*values, limit + 1),
            ).fetchall()
        # has_more with an empty page would make a client ask for ever.
        return [from_row(row) for row in rows[:limit]], limit > 0 and len(rows) > limit

    def start(self, job_id: str, facts: Facts | None) -> JobRecord | None:
        """queued -> in_progress; None when the job is gone or not queued. Without new ``facts`` the old ones stay."""
        return self._move(job_id, ("queued",), "in_progress", facts=facts, started_at=time.time())

    def complete(self, job_id: str, facts: Facts | None, *, stored_bytes: int, ttl_s: float | None) -> JobRecord | None:
        now = time.time()
        return self._move(
            job_id,
            ("queued", "in_progress"),
            "completed",
            facts=facts,
            stored_bytes=stored_bytes,
            completed_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
        )

    def fail(self, job_id: str, error: Mapping[str, Any], *, ttl_s: float | None) -> JobRecord | None:
        now = time.time()
        return self._move(
            job_id,
            ("queued", "in_progress"),
            "failed",
            error=dict(error),
            completed_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
        )

    def remove(self, job_id: str) -> JobRecord | None:
        """The record as it was, or None when somebody else removed it first."""
        with self._transaction() as db:
            row = db.execute("DELETE FROM jobs WHERE id = ? RETURNING *", (job_id,)).fetchone()
        return None if row is None else from_row(row)

    def remove_sync(self) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM jobs WHERE is_sync = 1")

    def adopt(self, owner: str, heir: str) -> int:
        """All jobs of ``owner``, expired ones too, become those of ``heir``. Returns how many. An Idempotency-Key that
        both have used stays with the heir's own job."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET idempotency_key = NULL WHERE owner = ? AND idempotency_key IN"
                " (SELECT idempotency_key FROM jobs WHERE owner = ?)",
                (owner, heir),
            )
            db.execute("UPDATE expired SET owner = ? WHERE owner = ?", (heir, owner))
            return db.execute("UPDATE jobs SET owner = ? WHERE owner = ?", (heir, owner)).rowcount

    def due(self, now: float) -> list[JobRecord]:
        """What :meth:`expire` will remove. Clients see these jobs as gone already."""
        with self._read() as db:
            return [from_row(row) for row in db.execute("SELECT * FROM jobs WHERE expires_at <= ?", (now,))]

    def expire(self, now: float) -> list[JobRecord]:
        """Removes what is due and remembers the ids; the caller has removed their files."""
        with self._transaction() as db:
            rows = db.execute("DELETE FROM jobs WHERE expires_at <= ? RETURNING *", (now,)).fetchall()
            db.executemany(
                "INSERT OR IGNORE INTO expired (seq, id, owner) VALUES (?, ?, ?)",
                [(row["seq"], row["id"], row["owner"]) for row in rows],
            )
            db.execute(
                "DELETE FROM expired WHERE seq <= (SELECT seq FROM expired ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (TOMBSTONES_KEPT,),
            )
        return [from_row(row) for row in rows]

    def requeue_running(self, *, crashed: bool) -> int:
        """in_progress -> queued at the end (or after the crash) of a server; a crash counts as an attempt."""
        with self._transaction() as db:
            return db.execute(
                "UPDATE jobs SET status = 'queued', attempts = attempts + ? WHERE status = 'in_progress'",
                (int(crashed),),
            ).rowcount

    def waiting(self) -> list[JobRecord]:
        """Queued jobs in the order to submit them again: those that had begun, then by priority and age."""
        with self._read() as db:
            rows = db.execute(
                "SELECT * FROM jobs WHERE status = 'queued' ORDER BY started_at IS NULL, priority DESC, seq"
            ).fetchall()
        return [from_row(row) for row in rows]

    def folders(self, *statuses: Status) -> set[str]:
        """Of the jobs in these states."""
        marks = ", ".join("?" * len(statuses))
        with self._read() as db:
            return {row["folder"] for row in db.execute(f"SELECT folder FROM jobs WHERE status IN ({marks})", statuses)}

    def pending_webhooks(self) -> list[JobRecord]:
        with self._read() as db:
            rows = db.execute("SELECT * FROM jobs WHERE webhook_state = 'pending' ORDER BY seq").fetchall()
        return [from_row(row) for row in rows]

    def set_webhook_state(self, job_id: str, state: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE jobs SET webhook_state = ? WHERE id = ?", (state, job_id))

    def counts(self) -> dict[str, int]:
        with self._read() as db:
            rows = db.execute("SELECT status, COUNT(*) AS n FROM jobs GROUP BY status").fetchall()
        return {row["status"]: row["n"] for row in rows}

    def stored_bytes(self) -> int:
        with self._read() as db:
            return db.execute("SELECT COALESCE(SUM(stored_bytes), 0) FROM jobs").fetchone()[0]

    def _move(self, job_id: str, before: tuple[str, ...], status: Status, **changes: Any) -> JobRecord | None:
        with self._transaction() as db:
            marks = ", ".join("?" * len(before))
            row = db.execute(f"SELECT * FROM jobs WHERE id = ? AND status IN ({marks})", (job_id, *before)).fetchone()
            if row is None:
                return None
            if "facts" in changes and changes["facts"] is None:
                del changes["facts"]
            if status in ("completed", "failed") and row["webhook_url"] is not None:
                changes["webhook_state"] = "pending"
            columns = {"status": status, **changes}
            sets = ", ".join(f"{name} = ?" for name in columns)
            row = db.execute(
                f"UPDATE jobs SET {sets} WHERE id = ? RETURNING *",
                (*(encode(name, value) for name, value in columns.items()), job_id),
            ).fetchone()
            return from_row(row)

    def _load(self, db: sqlite3.Connection, owner: str) -> Load:
        row = db.execute(
            "SELECT COUNT(*) FILTER (WHERE status = 'queued') AS waiting,"
            " COUNT(*) FILTER (WHERE status = 'in_progress') AS running,"
            " COALESCE(SUM(predicted_s) FILTER (WHERE status = 'queued'), 0.0) AS waiting_s,"
            " COUNT(*) FILTER (WHERE owner = ?) AS of_owner"
            " FROM jobs WHERE status IN ('queued', 'in_progress')",
            (owner,),
        ).fetchone()
        return Load(**dict(row))

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            yield self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
