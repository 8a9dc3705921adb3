"""A file as an answer: ranges by Starlette, refusals in our own shape, a file deleted in the same moment a 404."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from talkies.server.errors import error_response

MEDIA_TYPES = {".webp": "image/webp", ".jpg": "image/jpeg", ".mp4": "video/mp4"}


class Download(FileResponse):
    """Starlette answers a bad Range in plain text; clients of this API read JSON errors."""

    def __init__(self, path: Path, *, name: str) -> None:
        super().__init__(path, media_type=MEDIA_TYPES[path.suffix], filename=name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
