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

# First bytes of what is accepted, and of pictures that are not: their refusal has to speak of a picture.
HEADS: tuple[tuple[bytes, Kind], ...] = (
    (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF8", "image"),
    (b"BM", "image"),
    (b"II*\0", "image"),
    (b"MM\0*", "image"),
    (b"ID3", "audio"),
    (b"fLaC", "audio"),
    (b"OggS", "audio"),
)
RIFF_KINDS: dict[bytes, Kind] = {b"WEBP": "image", b"WAVE": "audio"}
ISO_BRAND_KINDS: dict[bytes, Kind] = {
    b"heic": "image",
    b"heix": "image",
    b"mif1": "image",
    b"avif": "image",
    b"M4A ": "audio",
}


def kind_of_head(head: bytes) -> Kind | None:
    """By the first 12 bytes, for a sender that gives neither a MIME type nor a suffix; None where they do not say."""
    if head[:4] == b"RIFF":
        return RIFF_KINDS.get(head[8:12])
    if head[4:8] == b"ftyp":
        return ISO_BRAND_KINDS.get(head[8:12], "video")
    if head[:1] == b"\xff" and head[1:2] in (b"\xfb", b"\xf3", b"\xf2"):
        return "audio"  # an MP3 without tags
    return next((kind for magic, kind in HEADS if head.startswith(magic)), None)


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
