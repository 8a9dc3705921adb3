"""What of this machine no client reads: the folders that the server works in."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from talkies.server.config import ServerConfig

_PART = r"[^\s'\"`,;:()\[\]]"
# Of a folder that nobody told us of: what begins like a path and has two parts. Endpoints do, and URLs, whose slash
# follows a letter, a colon or another slash.
_ANY_PATH = rf"(?<![\w.:/~-])/(?!v1/|web/)(?:(?!/){_PART})+/{_PART}*"


class PrivatePaths:
    """Takes paths out of messages; of each, its last part stays: an error still names the file it is about.

    Thread-safe."""

    def __init__(self, config: ServerConfig, model: str) -> None:
        folders = [config.data_dir, config.media_root, tempfile.gettempdir(), sys.prefix, Path(__file__).parents[2]]
        folders += [Path.cwd(), _home(), model if model.startswith("/") else None]
        known = [rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])(?:/{_PART}*)?" for folder in _spellings(folders)]
        self._pattern = re.compile("|".join([*known, _ANY_PATH]))

    def hide(self, text: str) -> str:
        return self._pattern.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], text)


def _spellings(folders: Iterable[Path | str | None]) -> list[str]:
    """Absolute, as given and with links followed; the longest first, so that it is found before its parent."""
    found = set()
    for folder in folders:
        if folder is not None:
            found |= {str(Path(folder).absolute()), str(Path(folder).resolve())}
    return sorted(found - {"/"}, key=len, reverse=True)


def _home() -> Path | None:
    try:
        return Path.home()
    except (RuntimeError, KeyError):  # a user id without an entry, and HOME unset
        return None
