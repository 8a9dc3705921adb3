"""What stands around every request: whom it was sent to, its path under a proxy, what it is called, and the size of its
body, which is counted whatever its headers claim."""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from talkies.server.errors import error_response

access = logging.getLogger("talkies.access")
LOCAL_NAMES = (".localhost", ".local", ".internal", ".home.arpa")  # no name of the public internet ends so
QUIET = ("/health", "/ping", "/metrics", "/load")  # asked every second by machines
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class HostGuard:
    """For a server without keys: 403 for requests that a page of some other site makes its visitor's browser send.

    A browser names in ``Host`` whom it believes to be talking to. A site that lets its own name point to this machine
    (DNS rebinding) can be told by it: an address, a name without a dot or of a local domain cannot be such a name, and
    ``names`` are the operator's. ``Origin`` of what changes something must be the same host, this machine, or one of
    ``names`` and ``origins``.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._app, self._origins = app, frozenset(origins)
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        message, param = refused
        await error_response(403, message, param=param)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        headers = Headers(scope=scope)
        hosts = [_host_of(f"//{value}") for value in headers.getlist("host")]
        for host in hosts:
            if host not in self._names and not _is_local(host):
                shown = host[:80]
                hint = f"use its address, start with --server-name {shown}, or set --api-key"
                return f"this server is not called {shown!r} ({hint})", "Host"
        origin = headers.get("origin")
        if origin is None or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        if "*" in self._origins or origin in self._origins:
            return None
        host = _host_of(origin)
        if host and (host in hosts or host in self._names or _is_this_machine(host)):
            return None
        return f"a page of {origin[:80]!r} sent this (set --api-key, or allow its origin)", "Origin"


def _host_of(url: str) -> str:
    """Without the port, in small letters; "" for what names no host."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    return bool(host) and ("." not in host or host.endswith(LOCAL_NAMES) or _address(host) is not None)


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


class RequestLog:
    """Gives every request an id, the client's own where it sent a usable ``X-Request-Id``; it is in the answer and in
    all log lines of the request. One line for each answer at its end; ``on_answer`` hears of each when it begins. What
    a request raises that is no answer is a bug of ours: a 500."""

    def __init__(self, app: ASGIApp, *, on_answer: Callable[[str, str, int], None] | None = None) -> None:
        self._app, self._on_answer = app, on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        own = _REQUEST_ID.fullmatch(sent) is not None
        request_id = sent if own else f"req_{secrets.token_hex(12)}"
        status, begun = 0, time.monotonic()

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                if own or "x-request-id" not in headers:  # sync names its job there
                    headers["X-Request-Id"] = request_id
                if self._on_answer is not None:
                    self._on_answer(scope["method"], scope["path"], status)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, named)
            except Exception as error:
                access.error("bug while answering %s %s", scope["method"], scope["path"][:200], exc_info=error)
                if status:
                    raise  # half an answer: the end of the connection says that it is one
                answer = error_response(500, f"internal error; the server's log has the details at {request_id}")
                await answer(scope, receive, named)
            finally:
                self._tell(scope, status, time.monotonic() - begun)

    def _tell(self, scope: Scope, status: int, took_s: float) -> None:
        method, path = scope["method"], scope["path"]
        client = scope.get("client")
        level = logging.DEBUG if path in QUIET and status < 400 else logging.INFO
        shown = "".join(c if c.isprintable() else "?" for c in path[:200])
        from_ = "" if client is None else f" from {client[0]}"
        access.log(level, "%s %s %s in %.3f s%s", method, shown, status or "left", took_s, from_)


class RootPath:
    """Requests come under ``root_path``, whether the proxy takes it off their paths or not.

    The address without a slash at its end is redirected: what a page names relatively would lie beside it.
    """

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            root, path = self._root_path, scope["path"]
            if path == root and scope["type"] == "http":
                await RedirectResponse(f"{root}/")(scope, receive, send)
                return
            scope = {**scope, "root_path": root, "path": path if path.startswith(f"{root}/") else root + path}
        await self._app(scope, receive, send)


class _BodyTooLarge(Exception):
    pass


class BodyLimit:
    """413 as soon as a body exceeds ``max_bytes``: by Content-Length before a byte is read, else by counting."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        # The server has checked the header's form; a lying one is caught by the count.
        if length.isdigit() and len(length) < 20 and int(length) > self._max_bytes:
            await self._refuse(scope, receive, send, int(length))
            return
        received, answered = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise _BodyTooLarge
            return message

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, counted, noting)
        except _BodyTooLarge:
            if not answered:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, size: int | None = None) -> None:
        got = "" if size is None else f" of {size / 2**20:.1f} MiB"
        # The rest of the body is not read, so the connection cannot be used again.
        response = error_response(
            413,
            f"the body{got} exceeds the limit of {self._max_bytes / 2**20:g} MiB (give references as URLs)",
            param="body",
            headers={"Connection": "close"},
        )
        await response(scope, receive, send)
