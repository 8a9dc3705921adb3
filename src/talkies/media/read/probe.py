"""What a media file's headers say, without decoding it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import av
from av.container import InputContainer

from talkies.media.read.container import open_media
from talkies.media.read.metadata import METADATA_KEY, unpack_metadata
from talkies.media.read.promised import promised_s
from talkies.media.read.streams import picture_stream, sound_stream

UNKNOWN = "unknown"  # a codec that the installed FFmpeg has no decoder for


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoInfo:
    codec: str
    width: int  # as stored, before rotation and sample aspect
    height: int
    fps: float
    frames: int  # 0 if the header does not say
    duration_s: float
    start_s: float = 0.0  # of the container's clock
    sample_aspect: float = 1.0  # width over height of one stored pixel


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioInfo:
    codec: str
    sample_rate_hz: int
    channels: int
    duration_s: float
    start_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaInfo:
    """``format`` is FFmpeg's name of the container; ``request`` what talkies wrote into it, else ``{}``."""

    format: str
    duration_s: float
    video: VideoInfo | None
    audio: AudioInfo | None
    request: dict[str, Any]


def probe(source: str | os.PathLike[str] | bytes, *, name: str | None = None) -> MediaInfo:
    """Raises ``MediaError`` naming the file and the reason."""
    with open_media(source, name) as (container, _):
        return probe_container(container)


def probe_container(container: InputContainer) -> MediaInfo:
    total_s = float((container.duration or 0) / 1_000_000)
    video = audio = None
    stream = picture_stream(container)
    if stream is not None:
        context = stream.codec_context
        rate = stream.average_rate or stream.guessed_rate
        video = VideoInfo(
            codec=context.name if context else UNKNOWN,
            width=context.width if context else 0,
            height=context.height if context else 0,
            fps=round(float(rate), 3) if rate else 0.0,
            frames=stream.frames,
            duration_s=_length_s(container, stream, total_s),
            start_s=_start_s(stream),
            sample_aspect=float(stream.sample_aspect_ratio or 0) or 1.0,
        )
    sound = sound_stream(container)
    if sound is not None:
        audio = AudioInfo(
            codec=sound.codec_context.name if sound.codec_context else UNKNOWN,
            sample_rate_hz=sound.codec_context.sample_rate if sound.codec_context else 0,
            channels=len(sound.codec_context.layout.channels) if sound.codec_context else 0,
            duration_s=_length_s(container, sound, total_s),
            start_s=_start_s(sound),
        )
    request = unpack_metadata(container.metadata.get(METADATA_KEY))
    return MediaInfo(format=container.format.name, duration_s=total_s, video=video, audio=audio, request=request)


def _length_s(container: InputContainer, stream: av.VideoStream | av.AudioStream, total_s: float) -> float:
    length = promised_s(container, stream)
    if length is None and stream.duration is not None and stream.time_base:
        length = stream.duration * stream.time_base
    return total_s if length is None else float(length)


def _start_s(stream: av.VideoStream | av.AudioStream) -> float:
    return 0.0 if stream.start_time is None or not stream.time_base else float(stream.start_time * stream.time_base)
