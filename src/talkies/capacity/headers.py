"""What the headers of a condition's file say of its size. Nothing is decoded. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from talkies.errors import InvalidRequest
from talkies.files.paths import local_path
from talkies.request import Condition

REMOTE = ("http://", "https://", "data:")
UNKNOWN_S = 1e6  # longer than anything that is taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Of one file: its upright size in square pixels (a quarter turn of a video is not looked for), seconds of its
    picture, and where its sound ends on the picture's clock; 0 is not there, ``UNKNOWN_S`` a length that no header
    states."""

    width: int = 0
    height: int = 0
    seconds: float = 0.0
    sound_s: float = 0.0
    sound_rate_hz: int = 0


def header_of(condition: Condition) -> Header | None:
    """``None`` for what cannot be asked: a URL, or a file that will be refused by name when it is read."""
    if condition.uri.startswith(REMOTE):
        return None
    path = local_path(condition.uri)
    try:
        return _picture(path) if condition.kind == "image" else _clip(path)
    except InvalidRequest:
        return None


def _picture(path: str) -> Header:
    from talkies.media.read.image import upright_size

    width, height = upright_size(path)
    return Header(width=width, height=height)


def _clip(path: str) -> Header:
    """Of a video or a sound."""
    from talkies.media.read.probe import probe

    info = probe(path)
    video, sound = info.video, info.audio
    shift = 0.0 if video is None or sound is None else sound.start_s - video.start_s
    return Header(
        width=0 if video is None else round(video.width * video.sample_aspect),
        height=0 if video is None else video.height,
        seconds=0.0 if video is None else video.duration_s or UNKNOWN_S,
        sound_s=0.0 if sound is None else (sound.duration_s or UNKNOWN_S) + shift,
        sound_rate_hz=0 if sound is None else sound.sample_rate_hz,
    )
