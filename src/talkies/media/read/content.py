"""What a file's first bytes say it is, so that a picture given as a video is called a picture, not a damaged video."""

from __future__ import annotations

import os

from talkies.errors import MediaError
from talkies.files.paths import readable_file
from talkies.request import Kind

HEAD_BYTES = 12
# Only what is one kind for certain. An Ogg file may be a sound or a video, and says so far behind its head.
_MAGIC: tuple[tuple[bytes, Kind, str], ...] = (
    (b"\x89PNG", "image", "a PNG picture"),
    (b"\xff\xd8\xff", "image", "a JPEG picture"),
    (b"GIF8", "image", "a GIF picture"),
    (b"II*\0", "image", "a TIFF picture"),
    (b"MM\0*", "image", "a TIFF picture"),
    (b"ID3", "audio", "an MP3 sound"),
    (b"fLaC", "audio", "a FLAC sound"),
    (b"\x1aE\xdf\xa3", "video", "a WebM or Matroska file"),
)
_RIFF: dict[bytes, tuple[Kind, str]] = {
    b"WEBP": ("image", "a WebP picture"),
    b"WAVE": ("audio", "a WAV sound"),
    b"AVI ": ("video", "an AVI video"),
}
_BRANDS: dict[bytes, tuple[Kind, str]] = {
    b"avif": ("image", "an AVIF picture"),
    b"heic": ("image", "a HEIC picture"),
    b"heix": ("image", "a HEIC picture"),
    b"mif1": ("image", "a HEIF picture"),
    b"M4A ": ("audio", "an M4A sound"),
    b"qt  ": ("video", "a QuickTime video"),
}
_MP4_BRANDS = (b"isom", b"iso2", b"iso4", b"iso5", b"iso6", b"mp41", b"mp42", b"avc1", b"M4V ")
_WORDS: dict[Kind, str] = {"image": "an image", "video": "a video", "audio": "a sound"}
_WAYS: dict[Kind, str] = {
    "image": "give it as a picture: image_reference, or type image",
    "video": "give it as a video: video_reference, or type video",
    "audio": "give it as a sound: audio_reference, or type audio",
}


def check_content(source: str | os.PathLike[str] | bytes, kind: Kind, name: str) -> None:
    """Raises ``MediaError`` for content that is plainly of another kind than the ``kind`` it was given as.

    A sound may be taken from a video. What tells nothing of itself passes: its decoder says what is wrong with it.
    """
    found = content_of(_head(source, name))
    if found is None or found[0] == kind or (kind == "audio" and found[0] == "video"):
        return
    raise MediaError(f"{name} is not {_WORDS[kind]}: it is {found[1]}", hint=_WAYS[found[0]], param=name)


def content_of(head: bytes) -> tuple[Kind, str] | None:
    """(kind, words for it) by the first 12 bytes; ``None`` where they do not say."""
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return ("video", "an MP4 video") if head[8:12] in _MP4_BRANDS else _BRANDS.get(head[8:12])
    return next(((kind, words) for magic, kind, words in _MAGIC if head.startswith(magic)), None)


def _head(source: str | os.PathLike[str] | bytes, name: str) -> bytes:
    if isinstance(source, bytes):
        return source[:HEAD_BYTES]
    path = readable_file(source, name)
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""  # whoever opens it next says why
