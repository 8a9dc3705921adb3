"""Refuse an output path before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

from talkies.errors import InvalidRequest, OutputError


def check_writable(path: Path) -> None:
    """Raises ``InvalidRequest`` for a name that is not an MP4's, ``OutputError`` where no file can be written."""
    if path.suffix.lower() != ".mp4":
        raise InvalidRequest(
            f"output {path} does not end in .mp4", hint="talkies writes MP4 files: name it so", param="output"
        )
    folder = path.parent
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder", hint="name a file in it", param="output")
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: {folder} is not a folder", hint=f"mkdir -p {folder}", param="output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"cannot write {path}: no permission in {folder}", hint="choose another place", param="output"
        )
