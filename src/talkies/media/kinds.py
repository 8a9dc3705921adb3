"""What a reference is, by what its sender says of it. Decoders look at the content in any case."""

from __future__ import annotations

import mimetypes
from typing import cast, get_args

from talkies.request import Kind

# What phones and browsers send and the standard table lacks on some systems.
SUFFIX_KINDS: dict[str, Kind] = {
    ".heic": "image",
    ".heif": "image",
    ".avif": "image",
    ".webp": "image",
    ".m4a": "audio",
    ".flac": "audio",
    ".opus": "audio",
    ".mkv": "video",
    ".webm": "video",
}


def kind_of_file(content_type: str | None, name: str | None) -> Kind | None:
    """By MIME type, then by suffix, the order that vLLM-Omni documents; None where neither says."""
    for mime in (content_type, mimetypes.guess_type(name or "")[0]):
        major = (mime or "").partition("/")[0].strip().lower()
        if major in get_args(Kind):
            return cast(Kind, major)
    return SUFFIX_KINDS.get("." + (name or "").lower().rpartition(".")[2])


def kind_of_uri(uri: str) -> Kind | None:
    """Of a path or URL; of a data: URL by its MIME type."""
    if uri[:5].lower() == "data:":
        return kind_of_file(uri[5:].partition(";")[0].partition(",")[0], None)
    if "://" in uri[:16]:
        uri = uri.partition("?")[0].partition("#")[0]
    return kind_of_file(None, uri)
