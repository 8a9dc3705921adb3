"""Who owns a job: the SHA-256 of the key that made it, or one anonymous owner where no key is set."""

from __future__ import annotations

import hashlib
import hmac

from starlette._utils import get_route_path
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from talkies.server.errors import Forbidden, Unauthorized, response_of

ANONYMOUS = "anonymous"
# What a probe and a browser without a key may see: neither says anything about jobs, models or the machine.
OPEN = ("/", "/health", "/ping")


def owner_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The operator's keys. Comparison takes the same time whichever key is tried."""

    def __init__(self, api_keys: tuple[str, ...]) -> None:
        self._digests = [owner_of(key) for key in api_keys]

    def owner(self, request: Request) -> str:
        """Raises ``Unauthorized``. Without keys every header is fine: the OpenAI client always sends one."""
        if not self._digests:
            if request.method not in ("GET", "HEAD") and request.headers.get("sec-fetch-site") == "cross-site":
                # A form on any web page could use the server on its visitor's machine.
                raise Forbidden("a page of another site sent this", hint="set --api-key", param="Sec-Fetch-Site")
            return ANONYMOUS
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).hexdigest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized("missing or wrong API key", hint="send Authorization: Bearer KEY", param="Authorization")
        return digest


class ProtectAll:
    """For ``--protect-all``: without a key only the probes and the page's own files answer, all else is a 401."""

    def __init__(self, app: ASGIApp, *, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = get_route_path(scope)
            if path not in OPEN and not path.startswith("/web/"):
                try:
                    self._keys.owner(Request(scope))
                except Unauthorized as error:
                    await response_of(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
