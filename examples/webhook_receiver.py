"""Receives what a server tells when a job ends, and checks that the server said it (Standard Webhooks, HMAC-SHA256).

secret="whsec_$(openssl rand -base64 32)"
WEBHOOK_SECRET="$secret" python examples/webhook_receiver.py 9000
talkies serve --webhook-secret "$secret" --allow-host 127.0.0.1
curl http://127.0.0.1:8000/v1/videos --json '{"prompt": "a ball bounces", "webhook_url": "http://127.0.0.1:9000"}'
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

TOLERANCE_S = 300  # an older message may be a recorded one that is played again
MAX_BYTES = 1 << 20


def verified(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> dict[str, Any] | None:
    """The event, or None when the server with ``secret`` did not send it at about ``now`` (seconds since 1970)."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(now - int(stamp)) > TOLERANCE_S:
        return None
    signed = b".".join([headers.get("webhook-id", "").encode(), stamp.encode(), body])
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    if not any(
        hmac.compare_digest(expected.encode(), one.encode()) for one in headers.get("webhook-signature", "").split()
    ):
        return None
    event: dict[str, Any] = json.loads(body)
    return event


def server(port: int, secret: str, on_event: Callable[[dict[str, Any]], None]) -> HTTPServer:
    """A server on this machine that calls ``on_event`` once for each job: a delivery can come more than once."""
    seen: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length", 0)), MAX_BYTES)
            event = verified(self.headers, self.rfile.read(length), secret, time.time())
            if event is not None and self.headers["webhook-id"] not in seen:
                seen.add(self.headers["webhook-id"])
                on_event(event)
            self.send_response(204 if event is not None else 401)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    print(f"listening on http://127.0.0.1:{port}", file=sys.stderr)
    server(port, os.environ["WEBHOOK_SECRET"], lambda event: print(event["type"], event["data"]["id"])).serve_forever()
