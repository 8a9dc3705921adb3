"""One signed POST when a job ends, in the form of the Standard Webhooks specification.

    webhook-id: the job's id            webhook-timestamp: unix seconds
    webhook-signature: v1,base64(HMAC-SHA256(key, "{id}.{timestamp}.{body}"))

The key is what follows ``whsec_`` in the operator's secret, base64-decoded; of a secret without that prefix, its bytes.
The body is OpenAI's event: ``type`` video.completed or video.failed, ``data`` the job object. The address rules are
those of references: public addresses, or hosts the operator listed; the connection goes to the address that was
checked, and redirects are not followed. A delivery that a restart interrupts is made again: receivers see each job at
least once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from talkies.errors import InvalidRequest
from talkies.server.config import ServerConfig, signing_key

log = logging.getLogger(__name__)
RETRY_AFTER_S = (0.0, 2.0, 10.0, 60.0)
TIMEOUT_S = 10.0
NUM_THREADS = 4  # a receiver that hangs holds up a quarter of the others at most


def check(url: str | None, config: ServerConfig) -> None:
    """Raises ``InvalidRequest`` for a URL that will not be called, while the client can still be told."""
    if url is None:
        return
    if config.webhook_secret is None:
        raise InvalidRequest(
            "webhook_url is not available: this server has no webhook secret to sign with",
            hint="start it with --webhook-secret, or watch /v1/videos/{id}/events",
            param="webhook_url",
        )
    _address(url, config)


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    digest = hmac.new(signing_key(secret), f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


class Webhooks:
    """Threads that deliver; ``on_result(job_id, "delivered" | "failed")`` records the outcome."""

    def __init__(self, config: ServerConfig, on_result: Callable[[str, str], None]) -> None:
        self._config, self._on_result = config, on_result
        self._queue: queue.Queue[tuple[str, str, dict[str, Any]] | None] = queue.Queue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"webhooks-{i}", daemon=True) for i in range(NUM_THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def send(self, job_id: str, url: str, event: dict[str, Any]) -> None:
        self._queue.put((job_id, url, event))

    def close(self) -> None:
        """An unfinished delivery stays pending and is made after the next start."""
        self._stopping.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopping.is_set():
            job_id, url, event = item
            try:
                delivered = self._deliver(job_id, url, event)
                if not self._stopping.is_set():
                    self._on_result(job_id, "delivered" if delivered else "failed")
            except Exception:
                log.exception("webhook of job %s", job_id)

    def _deliver(self, job_id: str, url: str, event: dict[str, Any]) -> bool:
        body = json.dumps(event, separators=(",", ":")).encode()
        for wait_s in RETRY_AFTER_S:
            if self._stopping.wait(wait_s):
                return False
            try:
                status = _post(url, job_id, body, self._config)
            except (OSError, http.client.HTTPException, InvalidRequest, ValueError) as error:
                log.warning("webhook of job %s failed: %s", job_id, error)
                continue
            if 200 <= status < 300:
                return True
            log.warning("webhook of job %s answered HTTP %d", job_id, status)
            if status == 410:  # the receiver wants no more
                return False
        return False


def _post(url: str, job_id: str, body: bytes, config: ServerConfig) -> int:
    assert config.webhook_secret is not None
    host, port, address = _address(url, config)
    parts = urlsplit(url)
    timestamp = int(time.time())
    connection = _Pinned(host, port, address, parts.scheme == "https")
    try:
        connection.request(
            "POST",
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            body,
            {
                "Content-Type": "application/json",
                "User-Agent": "talkies",
                "webhook-id": job_id,
                "webhook-timestamp": str(timestamp),
                "webhook-signature": sign(config.webhook_secret, job_id, timestamp, body),
            },
        )
        return connection.getresponse().status
    finally:
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """Connects to the checked address; the name is for the Host header and the certificate."""

    def __init__(self, host: str, port: int, address: str, secure: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._address, self._secure = address, secure
        if secure:
            self.default_port = 443

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), timeout=TIMEOUT_S)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _address(url: str, config: ServerConfig) -> tuple[str, int, str]:
    """(host, port, address to connect to). Raises ``InvalidRequest`` for an address that may not be contacted."""
    from talkies.media.fetch.addresses import AllowList, refusal, resolve

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise InvalidRequest("webhook_url is not a valid URL", param="webhook_url") from None
    bad = any(ord(c) <= 32 or ord(c) >= 127 or c == "\\" for c in url)
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or bad:
        raise InvalidRequest("webhook_url must be a plain http(s) URL in ASCII, without user", param="webhook_url")
    try:
        addresses = resolve(host, port, TIMEOUT_S)
    except OSError as error:
        raise InvalidRequest(f"webhook_url: {host} cannot be resolved: {error}", param="webhook_url") from None
    allow = AllowList(config.allow_hosts)
    for address in addresses:
        reason = None if allow.has_host(host) else refusal(address, allow)
        if reason is not None:
            raise InvalidRequest(
                f"webhook_url: {host} is {reason}: refused", hint="the operator can list it", param="webhook_url"
            )
    if not addresses:
        raise InvalidRequest(f"webhook_url: {host} has no address", param="webhook_url")
    return host, port, addresses[0]
