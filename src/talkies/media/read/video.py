"""A video file -> upright, square-pixel RGB frames at a constant rate, with its soundtrack beside them.

Frames go into slots of 1/fps by their timestamps (docs/model.md, Keyframes and references): a frame shown from t to u
takes the slots floor(t * fps + 0.5) up to floor(u * fps + 0.5), so slow sources repeat frames and fast ones drop some,
with no drift.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.sidedata.sidedata import Type as SideDataType

from talkies.errors import MediaError, TooLarge
from talkies.media.read import audio
from talkies.media.read.container import MAX_DECODE_PIXELS, open_media, picture_stream, promised_s
from talkies.media.read.resize import lanczos

MAX_CLIP_BYTES = 4 << 30
TRUNCATION_SLACK_S = 0.5  # a file may end this much before its header says
SEEK_FROM_S = 4.0
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
    notes: list[str] = []
    num_slots = max(1, round(max_seconds * fps))
    with open_media(source, name) as (container, label):
        stream = picture_stream(container)
        if stream is None:
            raise MediaError(f"{label} has no video stream", hint="give it as a sound, or use a video", param=label)
        reader = _Reader(container, stream, label, start_time_s, size_of, notes)
        frames = _fill_slots(reader, fps=fps, num_slots=num_slots)
    sound = None
    if with_audio:
        with open_media(source, name) as (container, label):
            if container.streams.audio:
                wave, rate = audio.decode_native(
                    container,
                    label,
                    max_seconds=len(frames) / fps,
                    start_time_s=start_time_s,
                    origin_s=reader.origin_s,
                )
                if wave.shape[1]:
                    sound = audio.resample(wave, rate, sample_rate_hz)
                else:
                    notes.append("the soundtrack is empty in this part")
    return VideoClip(frames=frames, fps=fps, audio=sound, sample_rate_hz=sample_rate_hz, notes=tuple(notes))


def _fill_slots(reader: _Reader, *, fps: int, num_slots: int) -> np.ndarray:
    """uint8 [F, H, W, 3], F <= num_slots."""
    slots: list[np.ndarray] = []
    used = 0
    for end_s, picture in reader.pictures():
        last = min(num_slots, math.floor(end_s * fps + _HALF))
        if last > len(slots):
            pixels = picture()
            repeats = last - len(slots)
            used += pixels.nbytes * repeats
            if used > MAX_CLIP_BYTES:
                raise TooLarge(
                    f"{reader.label} needs over {MAX_CLIP_BYTES >> 30} GiB when decoded",
                    hint="use a smaller or shorter video",
                    param=reader.label,
                )
            slots += [pixels] * repeats
        if len(slots) >= num_slots:
            break
    else:
        reader.check_complete()
    if not slots:
        if reader.num_decoded:
            raise MediaError(
                f"{reader.label}: start_time_seconds={float(reader.start_time_s):g} is outside the source duration",
                hint="start earlier",
                param=reader.label,
            )
        raise MediaError(f"cannot read frames of {reader.label}", hint="export the file again", param=reader.label)
    return np.stack(slots)


class _Reader:
    """Decodes one video stream into (end, pixels), times counted from the start that the caller asked for."""

    def __init__(
        self,
        container: InputContainer,
        stream: av.VideoStream,
        label: str,
        start_time_s: float,
        size_of: SizeOf | None,
        notes: list[str],
    ) -> None:
        self.label = label
        self.start_time_s = Fraction(start_time_s).limit_denominator(1_000_000)
        self.origin_s: Fraction | None = None
        self.num_decoded = 0
        self._container, self._size_of, self._notes = container, size_of, notes
        self._stream = stream
        context = self._stream.codec_context
        if context is None:
            raise MediaError(f"{label} uses a video codec that cannot be read", hint="convert it to H.264", param=label)
        if context.width * context.height > MAX_DECODE_PIXELS:
            raise TooLarge(f"{label} is {context.width}x{context.height}", hint="scale the video down", param=label)
        context.options = {"max_pixels": str(MAX_DECODE_PIXELS)}  # the stream may claim another size than the file
        self._stream.thread_type = "AUTO"
        self._size: tuple[int, int] | None = None
        self._end_s = Fraction(0)

    def pictures(self) -> Iterator[tuple[Fraction, Callable[[], np.ndarray]]]:
        """(end of display, decoder of its pixels) in order; each begins where the one before it ends."""
        previous: tuple[Fraction, av.VideoFrame] | None = None
        rate = self._stream.guessed_rate or self._stream.average_rate or Fraction(24)
        for frame in self._frames():
            time = self._snap(audio.frame_time(frame), rate, previous[0] if previous else None)
            self.num_decoded += 1
            if previous is not None and time > previous[0]:
                yield self._shown(time, previous[1])
            if previous is None or time > previous[0]:
                previous = (time, frame)
        if previous is not None:
            duration = self._last_duration(previous[1], rate)
            self._end_s = previous[0] + duration
            yield self._shown(self._end_s, previous[1])

    def check_complete(self) -> None:
        """``MediaError`` if the file stops well before what its header promises."""
        promised = promised_s(self._container, self._stream)
        if promised is None or not self.num_decoded:
            return
        if self._end_s + Fraction(TRUNCATION_SLACK_S) < promised:
            raise MediaError(
                f"{self.label} is truncated: {float(self._end_s):.2f} of {float(promised):.2f} s can be read",
                hint="export or upload the file again",
                param=self.label,
            )

    def _frames(self) -> Iterator[av.VideoFrame]:
        stream = self._stream
        if self.start_time_s > SEEK_FROM_S and stream.time_base and stream.start_time is not None:
            self.origin_s = stream.start_time * stream.time_base
            target = (self.origin_s + self.start_time_s) / stream.time_base
            self._container.seek(int(target), stream=stream, backward=True)
        yield from self._container.decode(stream)

    def _snap(self, time: Fraction | None, rate: Fraction, previous: Fraction | None) -> Fraction:
        """Time since the first picture. A clock of 1 ms cannot say 1/48 s, so times go to the nominal grid where they
        are within one tick of it: otherwise frames on a slot's edge would fall on either side of it."""
        if time is None:
            return Fraction(0) if previous is None else previous + 1 / rate
        if self.origin_s is None:
            self.origin_s = time
        time -= self.origin_s
        tick = self._stream.time_base or Fraction(1, 1_000_000)
        on_grid = round(time * rate) / rate
        fits = abs(on_grid - time) <= tick and tick * 4 < 1 / rate and (previous is None or on_grid > previous)
        return on_grid if fits else time

    def _last_duration(self, frame: av.VideoFrame, rate: Fraction) -> Fraction:
        nominal = 1 / rate
        if not frame.duration or frame.time_base is None:
            return nominal
        duration = frame.duration * frame.time_base
        return nominal if abs(duration - nominal) <= frame.time_base else duration

    def _shown(self, end: Fraction, frame: av.VideoFrame) -> tuple[Fraction, Callable[[], np.ndarray]]:
        return end - self.start_time_s, lambda: self._pixels(frame)

    def _pixels(self, frame: av.VideoFrame) -> np.ndarray:
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
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        if aspect > 0 and aspect != 1:
            # The aspect is that of the stored picture: after a quarter turn it stretches the other side.
            if (frame.width > frame.height) != (width > height):
                height = max(1, round(height * aspect))
            else:
                width = max(1, round(width * aspect))
            self._notes.append(f"pixels of aspect {aspect} made square: {width}x{height}")
        if width * height > MAX_DECODE_PIXELS:
            raise TooLarge(f"{self.label} is {width}x{height}", hint="scale the video down", param=self.label)
        return self._size_of(width, height) if self._size_of else (width, height)


def rgb_of(frame: av.VideoFrame) -> np.ndarray:
    """uint8 [H, W, 3] full range. Untagged colours are BT.709 from 720 lines on and BT.601 below, as players assume."""
    unspecified = 2
    if frame.colorspace == unspecified and not frame.format.is_rgb:
        matrix = "ITU709" if frame.height >= 720 else "ITU601"
        return frame.reformat(format="rgb24", src_colorspace=matrix).to_ndarray()
    return frame.to_ndarray(format="rgb24")


def upright(pixels: np.ndarray, frame: av.VideoFrame) -> np.ndarray:
    """Applies the display matrix, snapped to quarter turns and mirrors: x' = a x + c y, y' = b x + d y."""
    data: Any = next((s for s in frame.side_data if getattr(s, "type", None) == SideDataType.DISPLAYMATRIX), None)
    if data is None:
        return pixels
    matrix = np.frombuffer(bytes(data)[:36], np.int32)
    if len(matrix) < 9:
        return pixels
    a, b, c, d = (int(matrix[i]) for i in (0, 1, 3, 4))
    if abs(b) > abs(a):  # a quarter turn: rows become columns
        pixels = pixels.transpose(1, 0, 2)
        a, d = c, b
    if a < 0:
        pixels = pixels[:, ::-1]
    if d < 0:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
