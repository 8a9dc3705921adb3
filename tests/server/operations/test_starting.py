"""A server answers from the moment its port is open, whatever the worker is doing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from talkies.cli.run_server import listen, run
from talkies.errors import CheckpointError
from talkies.server import app as module
from talkies.server.config import ServerConfig
from tests.server.fakes import FakeService
from tests.server.jobs.test_lifecycle import until


class Slow(FakeService):
    """Says what it serves when it is told to."""

    def __init__(self) -> None:
        super().__init__(state="loading")
        self.known = threading.Event()
        self._info = self.info
        del self.info

    def __getattr__(self, name: str) -> Any:
        if name != "info":
            raise AttributeError(name)
        self.known.wait(300)
        return self._info

    def close(self, *, timeout_s: float = 10.0) -> None:
        self.known.set()
        if self._thread.is_alive():
            super().close(timeout_s=timeout_s)


@contextmanager
def starting(make_service: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, list[Any]]]:
    servers: list[Any] = []
    failures: list[Any] = []
    real = module.HttpServer

    def kept(*args: Any, **options: Any) -> Any:
        servers.append(real(*args, **options))
        return servers[-1]

    monkeypatch.setattr(module, "HttpServer", kept)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]

    def serve() -> None:
        try:
            run(make_service, ServerConfig(data_dir=folder), listener, time.monotonic())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)  # nobody would answer yet
    thread.start()
    until(lambda: servers and servers[0].started)
    try:
        yield f"http://127.0.0.1:{port}", thread, failures
    finally:
        servers[0].should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", timeout=5, trust_env=False)


def test_health_answers_at_once_with_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, service = threading.Event(), Slow()

    def make() -> FakeService:
        made.wait(10)
        return service

    with starting(make, tmp_path, monkeypatch) as (url, _, failures):
        answer = get(url, "/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "engine is loading: starting the worker" in answer.json()["error"]["message"]
        assert answer.headers["x-request-id"].startswith("req_")
        assert get(url, "/ping").status_code == 200
        assert get(url, "/").headers["content-type"].startswith("text/html")  # the page shows the stage itself
        assert get(url, "/web/app.js").status_code == 200
        assert get(url, "/web/nothing.js").status_code == get(url, "/web/../app.py").status_code == 503
        service.loading_stage = "text encoder"
        made.set()
        until(lambda: "engine is loading: text encoder" in get(url, "/health").text)
        assert httpx.post(f"{url}/v1/videos", json={"prompt": "a"}, trust_env=False).status_code == 503
        service.known.set()
        until(lambda: get(url, "/v1/models").status_code == 200)
        assert "text encoder" in get(url, "/health").text
        service.state = "ready"
        assert get(url, "/health").status_code == 200
    assert failures == []


def test_a_stop_while_the_worker_has_said_nothing_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with starting(Slow, tmp_path, monkeypatch) as (url, _, failures):
        assert get(url, "/health").status_code == 503  # a stop has 10 s there, and the worker is mute for 300
    assert failures == []


def test_what_keeps_it_from_starting_ends_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> FakeService:
        raise CheckpointError("no weights", hint="look")

    with starting(make, tmp_path, monkeypatch) as (_, thread, failures):
        thread.join(10)
        assert [str(f) for f in failures] == ["no weights (look)"]
