"""Limits of what a client may hand in (docs/api.md, Limits of files): bytes, sides, rates, durations, formats.

They are the hosted API's habits, not the model's; the counts and ratios that the model itself needs are checked by
``talkies.request``. All is judged before a job is queued, from headers; a sound, which costs little, is decoded too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

from talkies.errors import MediaError, TooLarge
from talkies.files.paths import readable_file
from talkies.media.read.audio import decode_native
from talkies.media.read.container import CONVERT, UNKNOWN_CODEC, open_media
from talkies.media.read.content import check_content
from talkies.media.read.image import probe_image
from talkies.media.read.probe import UNKNOWN, MediaInfo, probe

MIB = 1 << 20
_NAMES = {"h264": "H.264", "hevc": "H.265", "aac": "AAC", "mp3": "MP3", "mp3float": "MP3"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaLimits:
    """The hosted API's numbers; :meth:`loose` for a tiny model. Empty tuples allow whatever can be decoded."""

    min_side_px: int = 256
    max_side_px: int = 5760
    min_ratio: float = 0.4  # width / height
    max_ratio: float = 2.5
    image_max_bytes: int = 30 * MIB
    image_formats: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "HEIF", "AVIF")
    video_max_bytes: int = 50 * MIB
    video_containers: tuple[str, ...] = ("mov", "mp4")
    video_codecs: tuple[str, ...] = ("h264", "hevc")
    soundtrack_codecs: tuple[str, ...] = ("aac", "mp3", "mp3float")
    min_fps: float = 23.976
    max_fps: float = 60.0
    audio_max_bytes: int = 15 * MIB
    audio_containers: tuple[str, ...] = ("wav", "mp3")
    min_seconds: float = 2.0  # of each video and each sound
    max_seconds: float = 15.0  # of each
    max_total_seconds: float = 15.0  # of all videos, and of all sounds
    # Of all pictures and one frame of each video: a picture of one colour has a thousand times more pixels than bytes,
    # and each is decoded while its client waits. Nine pictures of a 13-megapixel camera, or three of the largest.
    max_total_pixels: int = 120_000_000
    slack_s: float = 0.01  # containers round: a 15 s clip with an AAC tail says 15.005 s

    @classmethod
    def loose(cls) -> Self:
        """What a small model on one's own machine needs no rule for; the byte caps stay."""
        return cls(
            min_side_px=1,
            min_ratio=0.25,
            max_ratio=4.0,
            video_containers=(),
            video_codecs=(),
            soundtrack_codecs=(),
            min_fps=1.0,
            max_fps=240.0,
            audio_containers=(),
            min_seconds=0.0,
            max_seconds=120.0,
            max_total_seconds=360.0,
        )


@dataclass(kw_only=True, slots=True)
class ReferenceTotals:
    """Seconds and pixels of one request's references so far. Two budgets of seconds: a video's own soundtrack never
    counts against the sounds given on their own."""

    limits: MediaLimits
    pixels: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"video": [], "audio": []})

    def add(self, kind: str, seconds: float, name: str) -> None:
        """Raises ``MediaError`` when it does not fit beside those before it."""
        limits, so_far = self.limits, self.seconds[kind]
        so_far.append(min(seconds, limits.max_seconds))
        total, most = sum(so_far), limits.max_total_seconds + limits.slack_s * len(so_far)
        if total > most:
            raise MediaError(
                f"{name}: reference {kind}s may last at most {limits.max_total_seconds:g} seconds in total, "
                f"got {total:.2f}",
                hint="shorten one of them",
                param=name,
            )

    def add_pixels(self, width: int, height: int, name: str) -> None:
        """Raises ``TooLarge`` when they do not fit beside those before them."""
        self.pixels += width * height
        if self.pixels > self.limits.max_total_pixels:
            raise TooLarge(
                f"{name}: the pictures of a request may have {self.limits.max_total_pixels} pixels in all, "
                f"with this one of {width}x{height} they have {self.pixels}",
                hint="scale them down",
                param=name,
            )


def check_image(
    source: str | os.PathLike[str] | bytes, limits: MediaLimits, *, name: str, totals: ReferenceTotals | None = None
) -> None:
    """From the header alone; ``totals`` are those of its request.

    Raises ``TooLarge`` or ``MediaError`` naming the value and the limit.
    """
    _check_bytes(source, limits.image_max_bytes, name)
    check_content(source, "image", name)
    kind, width, height = probe_image(source, name=name)
    if kind not in limits.image_formats:
        raise MediaError(
            f"{name} must use {', '.join(limits.image_formats)}; got {kind}", hint="convert it", param=name
        )
    _check_sides(width, height, limits, name)
    if totals is not None:
        totals.add_pixels(width, height, name)


def check_video(
    source: str | os.PathLike[str] | bytes,
    limits: MediaLimits,
    *,
    name: str,
    start_time_s: float = 0.0,
    totals: ReferenceTotals | None = None,
    longer_is_cut: bool = False,
) -> MediaInfo:
    """Returns what the headers say; ``totals`` are those of its request. ``longer_is_cut``: one that is longer than
    allowed is read as far as it is.

    Raises ``TooLarge`` or ``MediaError`` naming the value and the limit.
    """
    _check_bytes(source, limits.video_max_bytes, name)
    check_content(source, "video", name)
    info = probe(source, name=name)
    video = info.video
    if video is None:
        raise MediaError(
            f"{name} has no video stream", hint="give it as a sound (.m4a, say), or use a video", param=name
        )
    if UNKNOWN in (video.codec, info.audio.codec if info.audio else None):
        raise MediaError(f"{name} {UNKNOWN_CODEC}", hint=CONVERT, param=name)
    _check_container(info, limits.video_containers, name)
    if limits.video_codecs and video.codec not in limits.video_codecs:
        raise MediaError(
            f"{name} must use {_words(limits.video_codecs)} video, got {video.codec}", hint=CONVERT, param=name
        )
    if limits.soundtrack_codecs and info.audio and info.audio.codec not in limits.soundtrack_codecs:
        raise MediaError(
            f"{name} must use {_words(limits.soundtrack_codecs)} audio, got {info.audio.codec}",
            hint=CONVERT,
            param=name,
        )
    _check_sides(video.width, video.height, limits, name)
    # 23.976 is a rounded 24000/1001, and phones write 60.002.
    if video.fps and not limits.min_fps - 0.01 <= video.fps <= limits.max_fps + 0.01:
        raise MediaError(
            f"{name}: FPS must be in [{limits.min_fps:g}, {limits.max_fps:g}], got {video.fps:g}",
            hint="convert it to 24 fps",
            param=name,
        )
    _check_start(video.duration_s, start_time_s, limits, name)
    # Cut to 15 s, 29.97 fps keep 450 frames, of which the last one ends at 15.015 s: what is over is not read.
    frame_s = 1 / video.fps if video.fps else 0.0
    is_cut = longer_is_cut or start_time_s > 0
    _check_seconds(video.duration_s - start_time_s, limits, name, longer_is_cut=is_cut, tail_s=frame_s)
    if totals is not None:
        totals.add_pixels(video.width, video.height, name)
        totals.add("video", video.duration_s - start_time_s, name)
    return info


def check_audio(
    source: str | os.PathLike[str] | bytes,
    limits: MediaLimits,
    *,
    name: str,
    totals: ReferenceTotals | None = None,
    longer_is_cut: bool = False,
) -> MediaInfo:
    """As :func:`check_video`; the sound is decoded, so that damage and a lost end are found."""
    _check_bytes(source, limits.audio_max_bytes, name)
    check_content(source, "audio", name)
    info = probe(source, name=name)
    if info.audio is None:
        raise MediaError(f"{name} has no audio stream", hint="use a file with sound", param=name)
    if info.audio.codec == UNKNOWN:
        raise MediaError(f"{name} {UNKNOWN_CODEC}", hint=CONVERT, param=name)
    if limits.audio_containers and not set(info.format.split(",")) & set(limits.audio_containers):
        words = " or ".join(c.upper() for c in limits.audio_containers)
        raise MediaError(f"{name} must be {words}, got {info.format.split(',')[0]}", hint="convert it", param=name)
    _check_seconds(info.audio.duration_s, limits, name, longer_is_cut=longer_is_cut)
    with open_media(source, name) as (container, label):
        decode_native(container, label, max_seconds=limits.max_seconds + limits.slack_s)
    if totals is not None:
        totals.add("audio", info.audio.duration_s, name)
    return info


def _check_bytes(source: str | os.PathLike[str] | bytes, most: int, name: str) -> None:
    size = len(source) if isinstance(source, bytes) else readable_file(source, name).stat().st_size
    if size > most:
        raise TooLarge(
            f"{name} exceeds the {most / MIB:g} MiB size limit ({size / MIB:.1f} MiB)",
            hint="make it smaller",
            param=name,
        )


def _check_container(info: MediaInfo, allowed: tuple[str, ...], name: str) -> None:
    if allowed and not set(info.format.split(",")) & set(allowed):
        words = " or ".join(c.upper() for c in reversed(allowed))
        raise MediaError(f"{name} must be {words}, got {info.format.split(',')[0]}", hint="convert it", param=name)


def _check_sides(width: int, height: int, limits: MediaLimits, name: str) -> None:
    low, high = limits.min_side_px, limits.max_side_px
    if not (low <= width <= high and low <= height <= high):
        raise MediaError(
            f"{name}: dimensions must be in [{low}, {high}] pixels, got {width}x{height}", hint="scale it", param=name
        )
    if not limits.min_ratio <= width / height <= limits.max_ratio:
        raise MediaError(
            f"{name}: width / height must be in [{limits.min_ratio:g}, {limits.max_ratio:g}], got {width / height:.3g}",
            hint="crop it",
            param=name,
        )


def _check_start(duration_s: float, start_s: float, limits: MediaLimits, name: str) -> None:
    if start_s < 0 or (start_s > 0 and start_s >= duration_s):
        raise MediaError(
            f"{name}: start_time_s={start_s:g} is outside the source duration of {duration_s:.2f} s",
            hint="start earlier",
            param="start_time_s",
        )
    if start_s > 0 and duration_s - start_s < limits.min_seconds - limits.slack_s:
        raise MediaError(
            f"{name}: start_time_s={start_s:g} leaves {duration_s - start_s:.2f} s, "
            f"at least {limits.min_seconds:g} are needed",
            hint="start earlier",
            param="start_time_s",
        )


def _check_seconds(
    seconds: float, limits: MediaLimits, name: str, *, longer_is_cut: bool = False, tail_s: float = 0.0
) -> None:
    low, high = limits.min_seconds - limits.slack_s, limits.max_seconds + max(limits.slack_s, tail_s)
    if seconds < low or (seconds > high and not longer_is_cut):
        raise MediaError(
            f"{name}: duration must be in [{limits.min_seconds:g}, {limits.max_seconds:g}] seconds, got {seconds:.2f}",
            hint="use a longer one" if seconds < low else "trim it",
            param=name,
        )


def _words(codecs: tuple[str, ...]) -> str:
    return " or ".join(dict.fromkeys(_NAMES.get(c, c) for c in codecs))
