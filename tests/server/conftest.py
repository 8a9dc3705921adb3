"""A live uvicorn on 127.0.0.1 over a FakeService; one per test that asks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from talkies.server.app import HttpServer, create_app
from talkies.server.config import ServerConfig
from talkies.server.edge.wire import WireLimits
from talkies.server.jobs.coordinator import Coordinator
from tests.server.fakes import FakeService, mp4_bytes


@dataclass
class Server:
    url: str
    service: FakeService
    coordinator: Coordinator
    http: httpx.Client
    stop: Callable[[], None]

    def create(self, prompt: str = "a ball", **fields: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/videos", json={"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, job_id: str, *statuses: str, timeout_s: float = 30.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            job = self.http.get(f"/v1/videos/{job_id}").json()
            if job["status"] in (statuses or ("completed", "failed")):
                return job
            time.sleep(0.005)
        raise AssertionError(f"still {job}")


@contextlib.contextmanager
def serving(
    data_dir: Path,
    service: FakeService | None = None,
    *,
    wire_limits: WireLimits | None = None,
    patience_s: int = 5,
    **config: Any,
) -> Iterator[Server]:
    """``patience_s``: how long a stop waits for requests in flight. It must end within 15 s, so that more than that
    tells an answer that was ended by the stop from one that was given up, on a host however busy."""
    service = service or FakeService()
    settings = ServerConfig(data_dir=data_dir, **config)
    app = create_app(service, settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = HttpServer(
        app,
        settings,
        host="127.0.0.1",
        port=port,
        wire_limits=wire_limits,
        timeout_graceful_shutdown_s=patience_s,
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    stopped = threading.Event()

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive()

    certificate = settings.ssl_certfile
    url = f"http://127.0.0.1:{port}" if certificate is None else f"https://localhost:{port}"
    trusted = True if certificate is None else ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=url, timeout=20, trust_env=False, verify=trusted) as http:
        try:
            yield Server(url, service, app.state.coordinator, http, stop)
        finally:
            stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def png(tmp_path: Path) -> Path:
    from PIL import Image

    path = tmp_path / "a picture.png"
    Image.new("RGB", (160, 96), "green").save(path)
    return path


@pytest.fixture
def mp4(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4_bytes())
    return path


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    import wave

    path = tmp_path / "voice.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\0\1" * 32_000)
    return path
