"""What a reference is, by what its sender says of it. Decoders look at the content in any case."""

from __future__ import annotations

import mimetypes
from typing import cast, get_args

from talkies.request import Kind

# What phones, cameras and browsers send and the standard table lacks on some systems, or has wrong: to Python a .3gp is
# a sound.
SUFFIX_KINDS: dict[str, Kind] = {
    ".heic": "image",
    ".heif": "image",
    ".avif": "image",
    ".webp": "image",
    ".m4a": "audio",
    ".flac": "audio",
    ".opus": "audio",
    ".caf": "audio",
    ".mka": "audio",
    ".weba": "audio",
    ".mkv": "video",
    ".webm": "video",
    ".3gp": "video",
    ".3g2": "video",
    ".mts": "video",
    ".m2ts": "video",
    ".ts": "video",
}


def kind_of_file(content_type: str | None, name: str | None) -> Kind | None:
    """By MIME type, then by suffix, the order that vLLM-Omni documents; None where neither says."""
    known = SUFFIX_KINDS.get("." + (name or "").lower().rpartition(".")[2])
    return _kind_of_mime(content_type) or known or _kind_of_mime(mimetypes.guess_type(name or "")[0])


def _kind_of_mime(mime: str | None) -> Kind | None:
    major = (mime or "").partition("/")[0].strip().lower()
    return cast(Kind, major) if major in get_args(Kind) else None


def kind_of_uri(uri: str) -> Kind | None:
    """Of a path or URL; of a data: URL by its MIME type."""
    if uri[:5].lower() == "data:":
        return kind_of_file(uri[5:].partition(";")[0].partition(",")[0], None)
    if "://" in uri[:16]:
        uri = uri.partition("?")[0].partition("#")[0]
    return kind_of_file(None, uri)
