"""How long a file says it is: what is read is compared with it, so that half an upload is not taken for a whole one."""

from __future__ import annotations

import os
import re
import struct
from fractions import Fraction
from typing import BinaryIO

import av
from av.container import InputContainer

from talkies.errors import MediaError

TRUNCATION_SLACK_S = 0.5  # a file may end this much before its header says
# Containers that state a length; the others' is an estimate from the bit rate.
_STATES_LENGTH = ("mov", "matroska", "avi", "flv", "flac", "aiff")
# An MP3 whose header counts its frames: its length times its bit rate is what the header says of its bytes, and more
# than the file has. Without that count FFmpeg's length is computed from the bytes, so that the two agree.
_MP3_BYTES_SLACK = 1.02
# Who writes to a pipe cannot go back to fill the sizes in, and leaves 0 or something near 2 or 4 GiB.
_UNKNOWN_WAV_BYTES = 0x7FFF_0000
_MAX_WAV_CHUNKS = 1000


def promised_s(container: InputContainer, stream: av.VideoStream | av.AudioStream) -> Fraction | None:
    """The stream's length in seconds as its container states it, ``None`` where that is only a guess.

    To be asked before decoding: decoders of sound replace the bit rate by that of the last block.
    """
    length = None
    if stream.duration is not None and stream.time_base:
        length = stream.duration * stream.time_base
    if container.format.name == "mp3" and length is not None and isinstance(stream, av.AudioStream):
        bit_rate = stream.codec_context.bit_rate if stream.codec_context else None
        stated_bytes = length * (bit_rate or 0) / 8
        return length if stated_bytes > container.size * _MP3_BYTES_SLACK else None
    if not container.format.name.startswith(_STATES_LENGTH):
        return None
    if length is not None:
        return length
    tag = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if tag:  # Matroska's
        return int(tag[1]) * 3600 + int(tag[2]) * 60 + Fraction(tag[3])
    if len(container.streams) == 1 and container.duration:
        return Fraction(container.duration, 1_000_000)
    return None


def check_whole(label: str, read_s: Fraction | float, promised: Fraction | None, what: str = "") -> None:
    """``MediaError`` if a file, read to its end, gave well under what it promises."""
    if promised is not None and read_s + Fraction(TRUNCATION_SLACK_S) < promised:
        raise MediaError(
            f"{label} is truncated: {float(read_s):.2f} of {float(promised):.2f} s{what} can be read",
            hint="export or upload the file again",
            param=label,
        )


def check_wav(file: BinaryIO, label: str) -> None:
    """The same of a WAV, from its header: FFmpeg takes the end of the file for the end of the sound.

    Sizes that a recorder could not fill in promise nothing. ``file`` may be at any place, and is left at another.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(12)
    rate = 0
    for _ in range(_MAX_WAV_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            return
        kind, length = struct.unpack("<4sI", head)
        at = file.tell()
        if kind == b"fmt " and len(form := file.read(12)) == 12:
            rate = struct.unpack("<8xI", form)[0]  # bytes per second
        if kind == b"data":
            if rate and length < _UNKNOWN_WAV_BYTES:
                check_whole(label, Fraction(min(length, size - at), rate), Fraction(length, rate))
            return
        file.seek(at + length + length % 2)
