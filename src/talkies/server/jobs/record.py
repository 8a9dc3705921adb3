"""One row of the job table: its SQL, its Python form, and the way between them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, Literal

from talkies.engine.port.facts import Facts

Status = Literal["queued", "in_progress", "completed", "failed"]
SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued', 'in_progress', 'completed', 'failed')),
  model TEXT NOT NULL,
  request TEXT NOT NULL,
  facts TEXT NOT NULL DEFAULT '{}',
  warnings TEXT NOT NULL DEFAULT '[]',
  error TEXT,
  folder TEXT NOT NULL,
  num_outputs INTEGER NOT NULL,
  stored_bytes INTEGER NOT NULL DEFAULT 0,
  priority INTEGER NOT NULL DEFAULT 0,
  predicted_s REAL,
  is_sync INTEGER NOT NULL DEFAULT 0,
  return_metrics INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL,
  started_at REAL,
  completed_at REAL,
  expires_at REAL,
  idempotency_key TEXT,
  fingerprint TEXT NOT NULL,
  webhook_url TEXT,
  webhook_state TEXT
) STRICT;
CREATE UNIQUE INDEX jobs_idempotency ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_owner ON jobs (owner, seq);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE INDEX jobs_by_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX jobs_by_webhook ON jobs (webhook_state) WHERE webhook_state = 'pending';
CREATE TABLE expired (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL) STRICT;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """One accepted job. ``facts`` are the plan until the engine tells its own; ``folder`` is the random name of its
    files; ``attempts`` counts runs that a crash ended."""

    id: str
    owner: str
    model: str
    request: dict[str, Any]
    folder: str
    num_outputs: int
    created_at: float
    fingerprint: str
    facts: Facts
    seq: int = 0
    status: Status = "queued"
    warnings: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    stored_bytes: int = 0
    priority: int = 0
    predicted_s: float | None = None
    is_sync: bool = False
    return_metrics: bool = False
    attempts: int = 0
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    idempotency_key: str | None = None
    webhook_url: str | None = None
    webhook_state: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed")


_JSON = ("request", "facts", "warnings", "error")
_BOOL = ("is_sync", "return_metrics")


def encode(name: str, value: Any) -> Any:
    if isinstance(value, Facts):
        value = value.to_dict()
    if name in _JSON and value is not None:
        return json.dumps(value, separators=(",", ":"))
    return int(value) if isinstance(value, bool) else value


def from_row(row: sqlite3.Row) -> JobRecord:
    values = dict(row)
    for name in _JSON:
        values[name] = None if values[name] is None else json.loads(values[name])
    values["facts"] = Facts.from_dict(values["facts"])
    for name in _BOOL:
        values[name] = bool(values[name])
    return JobRecord(**values)
