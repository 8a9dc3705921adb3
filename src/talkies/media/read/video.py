"""A video file -> upright, square-pixel RGB frames at a constant rate, with its soundtrack beside them.

Frames go into slots of 1/fps by their timestamps (docs/model.md, Keyframes and references): a frame shown from t to u
takes the slots floor(t * fps + 0.5) up to floor(u * fps + 0.5), so slow sources repeat frames and fast ones drop some,
with no drift.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np

from talkies.errors import MediaError, TooLarge
from talkies.media.read import audio
from talkies.media.read.colour import rgb_of
from talkies.media.read.container import MAX_DECODE_PIXELS, open_media
from talkies.media.read.resize import lanczos
from talkies.media.read.streams import picture_stream, unread_pictures, unread_sounds
from talkies.media.read.timed_frames import SeekMissed, TimedFrames
from talkies.media.read.turn import turn_note, upright

MAX_CLIP_BYTES = 4 << 30
HDR_CURVES = {16: "PQ", 18: "HLG"}  # AVColorTransferCharacteristic
_HALF = Fraction(1, 2)

SizeOf = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoClip:
    """frames uint8 [F, H, W, 3] at ``fps``; audio float32 [2, N] at ``sample_rate_hz`` or ``None``; notes for users."""

    frames: np.ndarray
    fps: int
    audio: np.ndarray | None
    sample_rate_hz: int
    notes: tuple[str, ...] = ()


class Decoded(NamedTuple):
    """What was found to be there: frames at the wanted rate, and their upright size in square pixels."""

    num_frames: int
    width: int
    height: int


def read_video(
    source: str | os.PathLike[str] | bytes,
    *,
    fps: int = 24,
    max_seconds: float,
    start_time_s: float = 0.0,
    size_of: SizeOf | None = None,
    with_audio: bool = True,
    sample_rate_hz: int = audio.SAMPLE_RATE_HZ,
    name: str | None = None,
) -> VideoClip:
    """At most ``round(max_seconds * fps)`` frames from ``start_time_s`` on; time 0 is the first picture.

    ``size_of(width, height) -> (width, height)`` names the size that each frame is resized to (Lanczos) as it is
    decoded; without it frames keep their own size. The sound is cut to the frames' duration.
    Raises ``MediaError`` (no picture, damaged, truncated, start outside) and ``TooLarge``.
    """
    picture = _read_picture(
        source,
        name,
        lambda stream, label, notes: _Pixels(stream, label, notes, size_of),
        fps=fps,
        max_seconds=max_seconds,
        start_s=start_time_s,
    )
    frames, notes, sound = picture.frames, picture.notes, None
    if with_audio:
        heard = _decode_sound(source, name, picture, seconds=len(frames) / fps, start_s=start_time_s)
        if heard is not None:
            wave, rate = heard
            sound = audio.resample(audio.within_full_scale(wave, notes), rate, sample_rate_hz)
    return VideoClip(frames=frames, fps=fps, audio=sound, sample_rate_hz=sample_rate_hz, notes=tuple(notes))


def check_decodes(
    source: str | os.PathLike[str] | bytes,
    *,
    fps: int = 24,
    max_seconds: float,
    start_time_s: float = 0.0,
    with_audio: bool = True,
    name: str | None = None,
) -> Decoded:
    """Decodes what :func:`read_video` would read, picture and sound, and keeps nothing: raises what that would raise.

    The pixels of the first picture alone are converted.
    """
    shown: dict[str, int] = {}

    def size_of(width: int, height: int) -> tuple[int, int]:
        shown.update(width=width, height=height)
        return width, height

    def first_pixels(stream: av.VideoStream, label: str, notes: list[str]) -> _Pixels:
        return _FirstPixels(stream, label, notes, size_of)

    picture = _read_picture(source, name, first_pixels, fps=fps, max_seconds=max_seconds, start_s=start_time_s)
    if with_audio:
        _decode_sound(source, name, picture, seconds=len(picture.frames) / fps, start_s=start_time_s)
    return Decoded(len(picture.frames), **shown)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Picture:
    frames: np.ndarray  # uint8 [F, H, W, 3]
    origin_s: Fraction | None  # the container's time of the file's first picture
    notes: list[str]


def _read_picture(
    source: str | os.PathLike[str] | bytes,
    name: str | None,
    pixels_by: Callable[[av.VideoStream, str, list[str]], _Pixels],
    *,
    fps: int,
    max_seconds: float,
    start_s: float,
) -> _Picture:
    def read(may_seek: bool) -> _Picture:
        with open_media(source, name) as (container, label):
            notes = unread_pictures(container)
            stream = picture_stream(container)
            if stream is None:
                raise MediaError(f"{label} has no video stream", hint="give it as a sound, or use a video", param=label)
            pictures = TimedFrames(container, stream, label, start_time_s=start_s, may_seek=may_seek, notes=notes)
            pixels_of = pixels_by(stream, label, notes)
            frames = _fill_slots(pictures, pixels_of, fps=fps, num_slots=max(1, round(max_seconds * fps)))
        return _Picture(frames=frames, origin_s=pictures.origin_s, notes=notes)

    try:
        return read(may_seek=True)
    except SeekMissed:
        return read(may_seek=False)


def _decode_sound(
    source: str | os.PathLike[str] | bytes, name: str | None, picture: _Picture, *, seconds: float, start_s: float
) -> tuple[np.ndarray, int] | None:
    """(float32 [2, n], its own rate) of the sound beside the picture; ``None`` if this part of the file has none."""
    with open_media(source, name) as (container, label):
        if not container.streams.audio:
            return None
        picture.notes.extend(unread_sounds(container))
        wave, rate = audio.decode_native(
            container, label, max_seconds=seconds, start_time_s=start_s, origin_s=picture.origin_s
        )
    if not wave.shape[1]:
        picture.notes.append("the soundtrack is empty in this part")
        return None
    return wave, rate


def _fill_slots(pictures: TimedFrames, pixels_of: _Pixels, *, fps: int, num_slots: int) -> np.ndarray:
    """uint8 [F, H, W, 3], F <= num_slots."""
    label = pictures.label
    slots: list[np.ndarray] = []
    used = 0
    for begin_s, end_s, frame in pictures:
        last = min(num_slots, math.floor(end_s * fps + _HALF))
        if last > len(slots):
            if frame.is_corrupt:  # decoders paint over what they miss, with grey or with what was there before
                at_s = float(begin_s + pictures.start_time_s)
                raise MediaError(
                    f"{label} is damaged: the picture at {at_s:.2f} s is not whole",
                    hint="export the file again",
                    param=label,
                )
            pixels = pixels_of(frame)
            repeats = last - len(slots)
            used += pixels.nbytes * repeats
            if used > MAX_CLIP_BYTES:
                raise TooLarge(
                    f"{label} needs over {MAX_CLIP_BYTES >> 30} GiB when decoded",
                    hint="use a smaller or shorter video",
                    param=label,
                )
            slots += [pixels] * repeats
        if len(slots) >= num_slots:
            break
    else:
        pictures.check_complete()
    if not slots:
        if pictures.num_decoded:
            raise MediaError(
                f"{label}: start_time_s={float(pictures.start_time_s):g} is outside the source duration",
                hint="start earlier",
                param=label,
            )
        raise MediaError(f"cannot read frames of {label}", hint="export the file again", param=label)
    return np.stack(slots)


class _Pixels:
    """A decoded frame -> upright, square pixels of the wanted size. What the first one shows is noted."""

    def __init__(self, stream: av.VideoStream, label: str, notes: list[str], size_of: SizeOf | None = None) -> None:
        self._stream, self._label, self._size_of, self._notes = stream, label, size_of, notes
        self._size: tuple[int, int] | None = None

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        pixels = upright(rgb_of(frame), frame)
        if self._size is None:
            self._size = self._target_size(frame, pixels)
        return lanczos(pixels, *self._size)

    def _target_size(self, frame: av.VideoFrame, pixels: np.ndarray) -> tuple[int, int]:
        height, width = pixels.shape[:2]
        if frame.color_trc in HDR_CURVES:
            self._notes.append(
                f"HDR ({HDR_CURVES[frame.color_trc]}) is not mapped to SDR: colours come out flat; export it as SDR"
            )
        turn = turn_note(frame)
        if turn:
            self._notes.append(turn)
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        if aspect > 0 and aspect != 1:
            # The aspect is that of the stored picture: after a quarter turn it stretches the other side.
            if (frame.width > frame.height) != (width > height):
                height = max(1, round(height * aspect))
            else:
                width = max(1, round(width * aspect))
            self._notes.append(f"pixels of aspect {aspect} made square: {width}x{height}")
        if width * height > MAX_DECODE_PIXELS:
            raise TooLarge(f"{self._label} is {width}x{height}", hint="scale the video down", param=self._label)
        return self._size_of(width, height) if self._size_of else (width, height)


class _FirstPixels(_Pixels):
    """Converts the first frame, so that what is wrong with its size is found, and gives one black pixel for each."""

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        if self._size is None:
            super().__call__(frame)
        return np.zeros((1, 1, 3), np.uint8)
