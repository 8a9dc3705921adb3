"""One signed call when a job ends, to public addresses and listed ones only."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from talkies.errors import InvalidRequest
from talkies.server.config import ServerConfig
from talkies.server.jobs import webhook
from tests.server.conftest import serving
from tests.server.jobs.test_lifecycle import until

SECRET = "a-secret-of-the-operator"


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    received: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(({k.lower(): v for k, v in self.headers.items()}, body))
            first = {"/flaky": 500, "/gone": 410}.get(self.path, 204)
            self.send_response(first if len(received) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", received
    httpd.shutdown()


def test_the_end_of_a_job_is_posted_and_signed(receiver: Any, tmp_path: Path) -> None:
    url, received = receiver
    with serving(tmp_path, webhook_secret=SECRET, allow_hosts=("127.0.0.1",)) as server:
        job = server.create("a ball", webhook_url=f"{url}/done?x=1")
        until(lambda: received)
        headers, body = received[0]
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
        assert headers["webhook-id"] == job["id"]
        event = json.loads(body)
        assert (event["object"], event["type"], event["id"]) == ("event", "video.completed", f"evt_{job['id']}")
        assert (event["data"]["id"], event["data"]["status"]) == (job["id"], "completed")
        assert event["created_at"] == event["data"]["completed_at"]
        until(lambda: server.coordinator.store.peek(job["id"]).webhook_state == "delivered")  # type: ignore[union-attr]


def test_an_undelivered_webhook_is_sent_again_after_a_restart(
    receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = receiver
    monkeypatch.setattr("talkies.server.jobs.webhook.RETRY_AFTER_S", (0.0, 60.0))
    with serving(tmp_path, webhook_secret=SECRET, allow_hosts=("127.0.0.1",)) as server:
        job = server.create("fail", webhook_url=f"{url}/flaky")
        until(lambda: received)
    with serving(tmp_path, webhook_secret=SECRET, allow_hosts=("127.0.0.1",)):
        until(lambda: len(received) == 2)
    event = json.loads(received[1][1])
    assert (event["type"], event["data"]["id"]) == ("video.failed", job["id"])
    assert event["data"]["error"]["code"] == "non_finite"


def test_a_receiver_that_wants_no_more_is_not_asked_again(
    receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = receiver
    monkeypatch.setattr("talkies.server.jobs.webhook.RETRY_AFTER_S", (0.0, 0.0, 0.0))
    with serving(tmp_path, webhook_secret=SECRET, allow_hosts=("127.0.0.1",)) as server:
        job = server.create("a ball", webhook_url=f"{url}/gone")
        until(lambda: server.coordinator.store.peek(job["id"]).webhook_state == "failed")  # type: ignore[union-attr]
    assert len(received) == 1


def test_the_checked_address_is_called_whatever_the_name_says_by_now(
    receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = receiver
    monkeypatch.setattr("talkies.media.fetch.addresses.resolve", lambda *_: ["127.0.0.1"])
    config = ServerConfig(data_dir=tmp_path, webhook_secret=SECRET, allow_hosts=("hooks.invalid",))
    named = url.replace("127.0.0.1", "hooks.invalid")  # a name that nobody can resolve again
    assert webhook._post(f"{named}/done", "id", b"{}", config) == 204
    assert received[0][0]["host"].startswith("hooks.invalid:")


def test_every_address_of_a_name_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talkies.media.fetch.addresses.resolve", lambda *_: ["93.184.215.14", "10.0.0.1"])
    config = ServerConfig(data_dir=tmp_path, webhook_secret=SECRET)
    with pytest.raises(InvalidRequest, match="private"):
        webhook.check("https://example.com/x", config)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/x", "loopback"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://[::ffff:10.0.0.1]/", "private"),
        ("http://2130706433/", "loopback"),
        ("http://user:pass@example.com/", "without user"),
        ("ftp://example.com/", "http(s)"),
        ("http://exa mple.com/", "ASCII"),
    ],
)
def test_addresses_of_the_inside_are_refused_at_post(tmp_path: Path, url: str, words: str) -> None:
    with serving(tmp_path, webhook_secret=SECRET) as server:
        answer = server.http.post("/v1/videos", json={"prompt": "a ball", "webhook_url": url})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook_url")
        assert words in answer.json()["error"]["message"]


def test_the_server_waits_for_a_delivery_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is still written: the database is closed only after this."""
    begun, may_end, results = threading.Event(), threading.Event(), []
    hooks = webhook.Webhooks(ServerConfig(data_dir=tmp_path), lambda job_id, result: results.append(result))

    def deliver(job_id: str, url: str, event: dict[str, Any]) -> bool:
        begun.set()
        return may_end.wait(30)

    monkeypatch.setattr(hooks, "_deliver", deliver)
    hooks.start()
    hooks.send("job", "https://example.com/hook", {})
    assert begun.wait(30)
    threading.Timer(0.2, may_end.set).start()
    hooks.close()
    assert not any(thread.is_alive() for thread in hooks._threads)
