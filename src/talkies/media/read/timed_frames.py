"""The pictures of one video stream with the times at which each is shown, from a chosen start on.

A seek is a guess: it may land behind the start (streams without an index, long groups of pictures), and where a
container stamps some pictures only, the times after it are made up. So only containers that stamp every picture are
sought, where it landed is looked at, and what misses is read from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

import av
from av.container import InputContainer

from talkies.errors import MediaError, TooLarge
from talkies.media.read.audio import frame_time
from talkies.media.read.container import MAX_DECODE_PIXELS, until_end
from talkies.media.read.deinterlace import deinterlaced
from talkies.media.read.promised import check_whole, promised_s

SEEK_FROM_S = 4.0
SEEK_BACK_S = (0, 4, 16)  # how far before the start a seek aims, until it lands at or before it
_STAMPS_EVERY_PICTURE = ("mov", "matroska", "mpegts", "flv", "asf")
# MPEG program streams and AVI do not: their stamps are off by some pictures, and only a larger step is a real one.
_LOOSE_FRAMES = 6


class SeekMissed(Exception):
    """No seek landed at or before the start: open the file again and read it from its beginning."""


class TimedFrames:
    """Iterates over (begin, end, frame) in order of display; seconds from ``start_time_s`` on, so the first may begin
    before 0. Each picture begins where the one before it ends, and the first one begins at 0 or before.

    ``origin_s`` is then the container's time of the first picture of the file. Interlaced frames are made whole, and
    ``notes`` says so. Raises ``SeekMissed`` if ``may_seek``.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: av.VideoStream,
        label: str,
        *,
        start_time_s: float = 0.0,
        may_seek: bool = False,
        notes: list[str] | None = None,
    ) -> None:
        context = stream.codec_context
        if context is None:
            raise MediaError(f"{label} uses a video codec that cannot be read", hint="convert it to H.264", param=label)
        if context.width * context.height > MAX_DECODE_PIXELS:
            raise TooLarge(f"{label} is {context.width}x{context.height}", hint="scale the video down", param=label)
        context.options = {"max_pixels": str(MAX_DECODE_PIXELS)}  # the stream may claim another size than the file
        stream.thread_type = "AUTO"
        self.label = label
        self.start_time_s = Fraction(start_time_s).limit_denominator(1_000_000)
        self.origin_s: Fraction | None = None
        self.num_decoded = 0
        self._container, self._stream = container, stream
        self._notes = [] if notes is None else notes
        seekable = container.format.name.startswith(_STAMPS_EVERY_PICTURE)
        self._seeks = may_seek and seekable and self.start_time_s > SEEK_FROM_S
        self._counts = container.format.name == "mpeg" or (container.format.name == "avi" and context.has_b_frames)
        self._end_s = Fraction(0)

    def __iter__(self) -> Iterator[tuple[Fraction, Fraction, av.VideoFrame]]:
        previous: tuple[Fraction, av.VideoFrame] | None = None
        rate = self._stream.guessed_rate or self._stream.average_rate or Fraction(24)
        for frame in deinterlaced(self._frames(), self._notes):
            time = self._since_origin(frame, rate, previous)
            self.num_decoded += 1
            if previous is not None and time > previous[0]:
                yield previous[0] - self.start_time_s, time - self.start_time_s, previous[1]
            if previous is None or time > previous[0]:
                previous = (time, frame)
        if previous is not None:
            self._end_s = previous[0] + _duration_s(previous[1], rate)
            yield previous[0] - self.start_time_s, self._end_s - self.start_time_s, previous[1]

    def check_complete(self) -> None:
        """``MediaError`` if the file, read to its end, stops well before what its header promises."""
        if self.num_decoded:
            check_whole(self.label, self._end_s, promised_s(self._container, self._stream))

    def _frames(self) -> Iterator[av.VideoFrame]:
        frames = until_end(self._container.decode(self._stream))
        if not self._seeks:
            yield from frames
            return
        first = next(frames, None)
        if first is None:
            return
        self.origin_s = frame_time(first)
        if self.origin_s is None:
            raise SeekMissed
        for frame in self._sought(self.origin_s):
            if frame.pts is None:
                raise SeekMissed
            yield frame

    def _sought(self, origin_s: Fraction) -> Iterator[av.VideoFrame]:
        """The pictures from one at or before the start on."""
        begin_s = origin_s + self.start_time_s
        for back_s in SEEK_BACK_S:
            target_s = begin_s - back_s
            if target_s <= origin_s or not self._stream.time_base:
                break
            try:
                self._container.seek(int(target_s / self._stream.time_base), stream=self._stream, backward=True)
            except av.FFmpegError:
                break
            frames = until_end(self._container.decode(self._stream))
            first = next(frames, None)
            time = frame_time(first) if first is not None else None
            if first is not None and time is not None and origin_s <= time <= begin_s:
                return chain([first], frames)
        raise SeekMissed

    def _since_origin(
        self, frame: av.VideoFrame, rate: Fraction, previous: tuple[Fraction, av.VideoFrame] | None
    ) -> Fraction:
        """Time since the first picture. A clock of 1 ms cannot say 1/48 s, so times go to the nominal grid where they
        are within one tick of it: otherwise frames on a slot's edge would fall on either side of it."""
        stamp = frame_time(frame)
        following = Fraction(0) if previous is None else previous[0] + _duration_s(previous[1], rate)
        if stamp is None:
            return following
        if self.origin_s is None:
            self.origin_s = stamp
        time = stamp - self.origin_s
        if self._counts and abs(time - following) <= _LOOSE_FRAMES / rate:
            return following
        tick = self._stream.time_base or Fraction(1, 1_000_000)
        on_grid = round(time * rate) / rate
        fits = abs(on_grid - time) <= tick and tick * 4 < 1 / rate and (previous is None or on_grid > previous[0])
        return on_grid if fits else time


def _duration_s(frame: av.VideoFrame, rate: Fraction) -> Fraction:
    nominal = 1 / rate
    if not frame.duration or not frame.time_base:
        return nominal
    duration = frame.duration * frame.time_base
    return nominal if abs(duration - nominal) <= frame.time_base else duration
