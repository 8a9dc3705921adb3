"""What a path must be before a decoder opens it: of a pipe it would wait for bytes, of a device read for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from talkies.errors import MediaError

MAX_NAME_CHARS = 200


def name_of(source: str | os.PathLike[str]) -> str:
    """What messages call a file that its caller gave no name."""
    return Path(source).name or os.fspath(source)


def own_name(uri: str) -> str:
    """The last part of a path or URL, as its owner calls the file: no folder, host, query or control character."""
    if uri[:5].lower() == "data:":
        return ""
    try:
        path = unquote(urlsplit(uri).path) if "://" in uri[:16] else uri
    except ValueError:  # no URL after all
        return ""
    last = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(ch for ch in last if ch.isprintable())[:MAX_NAME_CHARS]


def public_name(model: str) -> str:
    """What clients call a model: of a path its folder, of one partition of a release the release."""
    if not model.startswith(("/", "./", "../", "~")):
        return model
    parts = [part for part in Path(model).parts if part not in ("/", ".", "..", "~")]
    if len(parts) > 1 and parts[-1].lower() in ("fl2va", "ref2va"):
        parts.pop()
    return parts[-1] if parts else "model"


def local_path(uri: str) -> str:
    """The path that ``uri`` names here: of a file: URL the part behind the host, without its %XX."""
    if uri[:5].lower() != "file:":
        return uri
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.netloc in ("", "localhost") else uri


def readable_file(source: str | os.PathLike[str], name: str) -> Path:
    """The path of a regular file. Raises ``MediaError`` naming what else it is."""
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        scheme = os.fspath(source).partition("://")
        if scheme[1] and scheme[0].isalnum():
            raise MediaError(
                f"{name}: {scheme[0]}:// is not fetched", hint="use http(s)://, data:, file:/// or a path", param=name
            ) from None
        raise MediaError(f"{name} does not exist", hint="check the path", param=name) from None
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise MediaError(f"cannot read {name}: {reason}", hint="check the path", param=name) from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise MediaError(f"{name} is not a file but {what}", hint="name a file", param=name)
    if not os.access(path, os.R_OK):
        raise MediaError(f"cannot read {name}: permission denied", hint="chmod +r it, or copy it", param=name)
    return path
