"""What stands around every request: its path under a proxy, and the size of its body, whatever its headers claim."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from talkies.server.errors import error_response


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
