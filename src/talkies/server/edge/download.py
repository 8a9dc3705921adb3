"""A file as an answer: ranges by Starlette, refusals in our own shape, a file deleted in the same moment a 404."""

from __future__ import annotations

import os
from pathlib import Path

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from talkies.server.errors import error_response

MEDIA_TYPES = {".webp": "image/webp", ".jpg": "image/jpeg", ".mp4": "video/mp4"}


class Download(FileResponse):
    """Starlette answers a bad Range in plain text; clients of this API read JSON errors."""

    def __init__(self, path: Path, *, name: str) -> None:
        # A clip never changes, but it can be deleted: kept by nobody but its owner, and asked for each time.
        headers = {"Cache-Control": "private, no-cache"}
        super().__init__(path, media_type=MEDIA_TYPES[path.suffix], filename=name, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await self._is_known(Headers(scope=scope).get("if-none-match")):
            kept = {name: self.headers[name] for name in ("etag", "cache-control")}
            await Response(status_code=304, headers=kept)(scope, receive, send)
            return
        refused: dict[str, str] | None = None
        status = 0

        async def shaped(message: Message) -> None:
            nonlocal refused, status
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                status = message["status"]
                kept = {k.decode(): v.decode() for k, v in message["headers"] if k == b"content-range"}
                refused = kept
            elif refused is None:
                await send(message)

        try:
            await super().__call__(scope, receive, shaped)
        except RuntimeError:
            if self.path and Path(self.path).exists():
                raise
            await error_response(404, "the file is gone", param="video_id")(scope, receive, send)
            return
        if refused is not None:
            message = "the range lies outside the file" if status == 416 else "the Range header is malformed"
            await error_response(status, message, param="Range", headers=refused)(scope, receive, send)

    async def _is_known(self, tags: str | None) -> bool:
        """Whether the client's copy is this file."""
        if tags is None:
            return False
        try:
            self.set_stat_headers(await to_thread.run_sync(os.stat, self.path))
        except OSError:
            return False
        known = [tag.strip().removeprefix("W/") for tag in tags.split(",")]
        return self.headers["etag"] in known or known == ["*"]
