"""Opens audio and video files that strangers made.

FFmpeg follows what a file says: a playlist named ``clip.mp4`` makes it fetch URLs and read local files. Only
self-contained formats are therefore admitted, by content and never by suffix, and no protocol but plain files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import av
from av.container import InputContainer

from talkies.errors import MediaError
from talkies.files.paths import name_of, readable_file
from talkies.media.read.promised import check_wav

# No playlists (hls, dash, concat), no image sequences, no devices: those name other files.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,wav,w64,mp3,flac,ogg,aac,aiff,caf"
UNKNOWN_CODEC = "has picture or sound of a codec that cannot be read"
CONVERT = "convert it to MP4 with H.264 and AAC"
MAX_DECODE_PIXELS = 5760 * 5760

# PyAV up to 18 raises for metadata that is not UTF-8 unless it is told otherwise; PyAV 19 always reads it.
_METADATA: dict[str, Any] = {"metadata_errors": "replace"} if hasattr(InputContainer, "metadata_errors") else {}

Frame = TypeVar("Frame", av.VideoFrame, av.AudioFrame)


@contextmanager
def open_media(source: str | os.PathLike[str] | bytes, name: str | None = None) -> Iterator[tuple[InputContainer, str]]:
    """(container, name for messages). Raises ``MediaError`` with one clear line; also for faults met inside the block.

    ``source`` is a path or the bytes themselves.
    """
    name = name or ("media" if isinstance(source, bytes) else name_of(source))
    if isinstance(source, bytes):
        if not source:
            raise MediaError(f"{name} is empty", hint="export or copy the file again", param=name)
        target: str | io.BytesIO = io.BytesIO(source)
    else:
        path = readable_file(source, name)
        if path.stat().st_size == 0:
            raise MediaError(f"{name} is empty", hint="export or copy the file again", param=name)
        target = f"file:{path.absolute()}"  # the prefix keeps a name such as "concat:a|b" a name
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    try:
        container = av.open(target, "r", options=options, **_METADATA)
    except (av.FFmpegError, OSError, ValueError) as exc:
        # EINVAL is how FFmpeg says that it knows the format but was not allowed to open it.
        reason = "its kind is not allowed" if exc.__class__.__name__ == "ArgumentError" else reason_of(exc)
        raise MediaError(
            f"{name} is not a media file that can be read ({reason})",
            hint="use MP4, MOV, WebM, MKV, WAV, MP3, FLAC, OGG or M4A",
            param=name,
        ) from exc
    try:
        if container.format.name == "wav":
            with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
                check_wav(file, name)
        yield container, name
    except av.error.DecoderNotFoundError as exc:
        raise MediaError(f"{name} {UNKNOWN_CODEC}", hint=CONVERT, param=name) from exc
    except (av.FFmpegError, UnicodeDecodeError) as exc:
        raise MediaError(f"{name} is damaged: {reason_of(exc)}", hint="export the file again", param=name) from exc
    finally:
        container.close()


def until_end(decoded: Iterator[Frame]) -> Iterator[Frame]:
    """What ``container.decode`` gives. PyAV ends with an IndexError where a file gained streams while it was read; the
    stream that is read was there before them and has ended by then."""
    while True:
        try:
            frame = next(decoded)
        except (StopIteration, IndexError):
            return
        yield frame


def reason_of(exc: BaseException) -> str:
    """FFmpeg's words without its file name."""
    text = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
    return str(text).splitlines()[0]
