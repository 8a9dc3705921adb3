"""What an operator sees: request ids, the access log, metrics and their texts."""

from __future__ import annotations

import logging
import re

import pytest
import structlog

from talkies.engine.service.lifetime_totals import LifetimeTotals
from talkies.engine.worker.counters import Counts
from talkies.server.metric_help import HELP
from tests.server.conftest import Server
from tests.server.jobs.test_lifecycle import until
from tests.server.test_events import stream


def metric(server: Server, line: str) -> float:
    found = [text for text in server.http.get("/metrics").text.splitlines() if text.startswith(line)]
    return float(found[0].split()[-1]) if found else 0.0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/health", 200), ("GET", "/nowhere", 404), ("GET", "/v1/videos", 200), ("POST", "/v1/videos", 415)],
)
def test_every_answer_has_a_request_id(server: Server, method: str, path: str, status: int) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == status
    assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
    assert answer.headers["x-request-id"] != server.http.request(method, path).headers["x-request-id"]
    mine = server.http.request(method, path, headers={"X-Request-Id": "order-7/a"})
    assert mine.headers["x-request-id"] == "order-7/a"
    for odd in ("two words", "x" * 129, "\u00e9".encode().decode("latin-1")):
        assert (
            server.http.request(method, path, headers={"X-Request-Id": odd.encode("latin-1")})
            .headers["x-request-id"]
            .startswith("req_")
        )


def test_sync_names_its_job_unless_the_client_names_the_request(server: Server) -> None:
    answer = server.http.post("/v1/videos/sync", json={"prompt": "a ball"})
    assert answer.headers["x-request-id"].startswith("video_sync-")
    answer = server.http.post("/v1/videos/sync", json={"prompt": "a ball"}, headers={"X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "mine"


def test_each_answer_is_a_line_of_the_access_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="talkies.access")
    job = server.create("a ball")
    server.http.get("/nowhere%0Aforged 200")
    server.http.get("/health")
    list(stream(server, job["id"]))
    until(lambda: any("/events" in r.getMessage() for r in caplog.records))  # it is told after the last byte
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "talkies.access"]
    texts = [text for _, text in lines]
    assert re.fullmatch(r"POST /v1/videos 200 in \d+\.\d{3} s from 127\.0\.0\.1", texts[0])
    assert any(text.startswith("GET /nowhere?forged 200 404 in") for text in texts)
    assert all("\n" not in text for text in texts)
    assert [level for level, text in lines if "/health" in text] == ["DEBUG"]
    assert sum("/events 200" in text for text in texts) == 1


def test_refused_counts_every_post_that_is_the_clients_to_mend(server: Server) -> None:
    line = 'talkies_job_events_total{event="refused"'
    posts = [
        {"json": {"prompt": ""}},
        {"json": {"prompt": "a", "no_such_field": 1}},
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        {"content": b"x", "headers": {"Content-Type": "text/plain"}},
        {"json": {"prompt": "huge"}},
    ]
    for count, post in enumerate(posts, 1):
        assert 400 <= server.http.post("/v1/videos", **post).status_code < 500
        assert metric(server, line) == count
    assert server.http.post("/v1/videos/sync", json={"prompt": ""}).status_code == 400
    assert metric(server, line) == len(posts) + 1
    server.create("a ball")
    server.http.get("/v1/videos/nobody")
    server.http.delete("/v1/videos/nobody")
    assert metric(server, line) == len(posts) + 1
    assert metric(server, 'talkies_job_events_total{event="accepted"') == 1


def test_every_metric_says_in_a_sentence_what_it_counts(server: Server) -> None:
    server.wait(server.create("a ball")["id"])
    said: list[dict[str, float]] = []
    counts = Counts(lambda message: said.append(message.values))
    counts.say(now=True, active=0.0, max_step_rows=1.0)
    engine = (
        said[0]
        | LifetimeTotals().values()
        | dict.fromkeys(("jobs", "step_fixed_seconds", "step_row_seconds", "room_bytes"), 1.0)
    )
    server.service.metrics = lambda: engine  # type: ignore[method-assign]
    texts = dict(re.findall(r"^# HELP (\S+) (.+)$", server.http.get("/metrics").text, re.MULTILINE))
    assert {f"talkies_engine_{name}" for name in engine} <= set(texts)
    for name, text in texts.items():
        if not name.endswith("_created"):
            assert text in HELP.values(), (name, text)
            assert text.endswith(".")
            assert len(text.split()) > 4


def test_a_bug_is_a_500_whose_id_is_in_the_log(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server.coordinator.store, "page", broken)
    answer = server.http.get("/v1/videos", headers={"X-Request-Id": "look-here"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "look-here")
    assert "look-here" in answer.json()["error"]["message"]
    assert "a bug" not in answer.text
    (record,) = [r for r in caplog.records if r.exc_info]
    assert record.getMessage() == "bug while answering GET /v1/videos"


def test_a_jobs_log_lines_name_the_request_that_made_it(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """They come from the engine's thread, long after the answer."""
    said: list[dict[str, object]] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "talkies.server.jobs.outcomes":
                said.append({"event": record.getMessage(), **structlog.contextvars.get_contextvars()})

    caplog.set_level(logging.INFO)
    listener = Listener()
    logging.getLogger().addHandler(listener)
    try:
        answer = server.http.post("/v1/videos", json={"prompt": "a ball"}, headers={"X-Request-Id": "order-7"})
        server.wait(answer.json()["id"])
        until(lambda: len(said) == 2)
    finally:
        logging.getLogger().removeHandler(listener)
    assert said[0] == {"event": "began", "job_id": answer.json()["id"], "request_id": "order-7"}
    assert str(said[1]["event"]).startswith("completed after")
    assert said[1]["request_id"] == "order-7"
