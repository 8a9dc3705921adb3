"""The page's files as answers: of the application, and of the server while there is no application yet."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath

from starlette.responses import Response

# The page uses nothing from outside; the policy makes sure that it stays so.
POLICY = "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; frame-ancestors 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
TYPES = {".js": "text/javascript", ".css": "text/css"}
_FOLDER = resources.files("talkies.server") / "web"


def page() -> Response:
    return Response((_FOLDER / "index.html").read_bytes(), media_type="text/html", headers=HEADERS)


def asset(name: str) -> Response | None:
    """``None`` where the page has no such file."""
    if name not in {file.name for file in _FOLDER.iterdir()} or PurePath(name).suffix not in TYPES:
        return None
    return Response((_FOLDER / name).read_bytes(), media_type=TYPES[PurePath(name).suffix], headers=HEADERS)


def of_path(path: str) -> Response | None:
    """What a GET of ``path`` gives, if it is one of the page's."""
    return page() if path == "/" else asset(path.removeprefix("/web/")) if path.startswith("/web/") else None
