"""URI -> bytes: ``http(s)://``, ``data:`` and, where the operator names a folder, ``file://``.

Everything a stranger's URL can do to a server is bounded here: which addresses are contacted (``addresses.py``), how
often it may redirect, how long it may take in all, how much it may send. Bodies are taken as they are: no
decompression, so no gzip bomb. Proxies and credentials of the environment are not used.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from talkies.errors import MediaError
from talkies.media.fetch.addresses import Resolver, resolve
from talkies.media.fetch.download import Connect, Download, FetchPolicy, Kind, check_type, connect_to, too_large

__all__ = ["FetchPolicy", "fetch"]
_URL_SAFE = str.maketrans("-_", "+/")


def fetch(
    uri: str,
    policy: FetchPolicy,
    *,
    kind: Kind,
    max_bytes: int,
    name: str | None = None,
    resolver: Resolver = resolve,
    connect: Connect | None = None,
) -> bytes:
    """The bytes behind ``uri``. ``name`` is the request's field, for messages and ``param``.

    Raises ``MediaError`` (refused or failed, one clear line) and ``TooLarge``. Blocks; call it from a thread.
    """
    name = name or kind
    scheme = uri.split(":", 1)[0].lower() if ":" in uri[:16] else ""
    if scheme == "data":
        return _from_data_url(uri, kind, max_bytes, name)
    if scheme == "file":
        return _from_file(uri, policy, max_bytes, name)
    if scheme in ("http", "https"):
        return Download(policy, kind, max_bytes, name, resolver, connect or connect_to).run(uri)
    raise MediaError(f"{name} must be an http(s) URL or data URL", param=name)


def _from_data_url(uri: str, kind: Kind, max_bytes: int, name: str) -> bytes:
    head, comma, body = uri[5:].partition(",")
    if not comma:
        raise MediaError(f"{name} is not a complete data URL: it has no comma", param=name)
    media_type, *options = head.split(";")
    check_type(media_type, kind, name)
    if len(body) > 4 * max_bytes + 1024:  # before anything is copied
        raise too_large(name, max_bytes)
    if any(option.strip().lower() == "base64" for option in options):
        try:
            # The URL-safe alphabet and a missing padding are what many encoders write into URLs; both are unambiguous.
            text = re.sub(r"\s+", "", unquote(body)).translate(_URL_SAFE).rstrip("=")
            data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise MediaError(f"{name} is not valid base64: {exc}", param=name) from None
    else:
        data = unquote_to_bytes(body)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    if not data:
        raise MediaError(f"{name} is empty", param=name)
    return data


def _from_file(uri: str, policy: FetchPolicy, max_bytes: int, name: str) -> bytes:
    if policy.media_root is None:
        raise MediaError(
            f"{name}: file:// is not allowed here", hint="upload the file, or name a media root at start", param=name
        )
    parts = urlsplit(uri)
    refused = MediaError(f"{name} is not a file under the media root", param=name)  # says nothing about other folders
    if parts.netloc not in ("", "localhost") or "\0" in unquote(parts.path):
        raise refused
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)  # follows links, so that what they hide is checked
        if not path.is_relative_to(policy.media_root.resolve(strict=True)):
            raise refused
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, RuntimeError, ValueError):
        raise refused from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    return data
