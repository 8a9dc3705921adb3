"""Where an MP4 may be written, and what to say when it cannot."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from talkies.errors import InvalidRequest, OutputError


def destination(path: Path) -> Path:
    """The file that will be written: links are followed, as every other program does that writes through a name.

    The writer renames over this name, which would replace a device, a pipe or a link: ``OutputError`` for those.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return target
    except (OSError, ValueError) as exc:
        raise cannot_write(path, reason_of(exc)) from None
    if stat.S_ISDIR(mode):
        raise cannot_write(path, "it is a folder")
    if not stat.S_ISREG(mode):
        raise cannot_write(path, "it is a device, a pipe or a socket")
    if not os.access(target, os.W_OK):
        raise cannot_write(path, "it is read-only")
    return target


def check_place(path: Path) -> None:
    """Raises ``OutputError`` before any work is done for a place where no MP4 can be written."""
    if path.suffix.lower() != ".mp4":
        raise OutputError(f"output {path} does not end in .mp4", hint="talkies writes MP4 files: name it so")
    target = destination(path)
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(
            f"cannot write {path}: {folder if target != path.absolute() else path.parent} is not a folder",
            hint=f"mkdir -p {path.parent}",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {path}: no permission in {folder}", hint="choose another place")


def check_writable(path: Path, *, inputs: Iterable[Path] = ()) -> None:
    """The same of a place that the user chose: ``InvalidRequest``, also where it is one of ``inputs``."""
    try:
        check_place(path)
    except OutputError as error:
        raise InvalidRequest(error.message, hint=error.hint, param="output") from None
    target = os.path.realpath(path)
    if any(os.path.realpath(source) == target for source in inputs):
        raise InvalidRequest(
            f"output {path} is also an input, which would be lost", hint="name another file with -o", param="output"
        )


def cannot_write(path: Path, reason: str) -> OutputError:
    return OutputError(f"cannot write {path}: {reason}", hint=_way_out(reason))


def reason_of(exc: BaseException) -> str:
    # An FFmpegError's text repeats the temporary name, which means nothing to the reader.
    return str(getattr(exc, "strerror", None) or str(exc) or type(exc).__name__)


def _way_out(reason: str) -> str | None:
    ways = {
        "No space left": "free some disk space or choose another folder",
        "too large": "raise the file-size limit (ulimit -f)",
        "No such file": "create the folder first",
        "it is ": "name another file",
        "name too long": "choose a shorter name",
    }
    return next((way for words, way in ways.items() if words in reason), None)
