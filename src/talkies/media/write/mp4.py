"""Frames and wave -> one MP4: H.264 yuv420p BT.709 limited range, AAC stereo, both starting at t = 0.

    with Mp4Writer(path, width=1344, height=768, sample_rate_hz=32_000, metadata=request) as writer:
        writer.write_wave(wave)            # any time before the end; first keeps the least in memory
        for frames in clips:               # uint8 [f, H, W, 3]
            writer.write_frames(frames)    # returns at once: a thread encodes while the next clip decodes

The file appears under its name only when it is whole: everything is written to a hidden neighbour that is renamed at
the end and removed on any failure. Same input, same thread count: same bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import threading
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import numpy as np
from av.container import OutputContainer

from talkies.errors import OutputError
from talkies.media.read.audio import check_wave
from talkies.media.read.metadata import METADATA_KEY, pack_metadata
from talkies.media.write.destination import cannot_write, destination, reason_of

AAC_BIT_RATE = 192_000
AAC_FRAME_SAMPLES = 1024
MAX_QUEUED_CHUNKS = 2  # beside the one being encoded: a chunk of 17 full-size frames is 53 MB

# AVColorRange.MPEG, and "1" for BT.709 in AVColorSpace, AVColorPrimaries and AVColorTransferCharacteristic.
_LIMITED, _BT709 = 1, 1
_END = object()


def default_threads() -> int:
    """Cores this process may use, at most 16: x264 gains nothing beyond and the bytes depend on the count."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class Mp4Writer:
    """Writes one MP4 in a thread of its own; see the module's text.

    ``sample_rate_hz=None`` makes a file without an audio stream; otherwise :meth:`write_wave` is due exactly once.
    Raises ``OutputError`` (path and reason) for anything the disk refuses, at the next call or at the end.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        width: int,
        height: int,
        fps: int = 24,
        sample_rate_hz: int | None = 32_000,
        metadata: Mapping[str, Any] | None = None,
        preset: str = "veryfast",
        crf: int = 18,
        threads: int | None = None,
    ) -> None:
        if width < 2 or height < 2 or width % 2 or height % 2:
            raise OutputError(f"cannot encode {width}x{height}", hint="H.264 yuv420p needs even sides")
        self.path = Path(path)
        self.width, self.height, self.fps, self.sample_rate_hz = width, height, fps, sample_rate_hz
        self.num_frames = 0  # frames handed in so far
        self._metadata = pack_metadata(metadata or {})
        self._preset, self._crf, self._threads = preset, crf, threads or default_threads()
        self._queue: queue.Queue[Any] = queue.Queue(MAX_QUEUED_CHUNKS)
        self._failure: BaseException | None = None
        self._abandoned = threading.Event()
        self._wave_given = False
        self._thread: threading.Thread | None = None
        self._container: OutputContainer | None = None
        self._video: av.VideoStream
        self._target: Path  # where links lead
        self._temp: Path  # its neighbour until the end
        self._audio: av.AudioStream | None = None

    def __enter__(self) -> Self:
        self._target = destination(self.path)
        self._temp = self._target.with_name(f".talkies-{secrets.token_hex(8)}.part")
        try:
            self._open()
        except BaseException as exc:
            if self._container is not None:
                self._container.close()
            self._remove_temp()
            if isinstance(exc, OSError | ValueError):
                raise self._error(reason_of(exc)) from exc
            raise
        self._thread = threading.Thread(target=self._run, name="mp4-encode", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._abandon()
            raise
        if kind is not None:
            self._abandon()

    def write_frames(self, frames: np.ndarray) -> None:
        """Queues RGB frames, uint8 [f, H, W, 3]. The array must not be changed afterwards."""
        expected = (self.height, self.width, 3)
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1:] != expected:
            # A guess here would become a black or banded video.
            raise self._error(f"frames must be uint8 [f, {self.height}, {self.width}, 3], got {_describe(frames)}")
        self._put("frames", frames)

    def write_wave(self, wave: np.ndarray) -> None:
        """Queues the whole sound, float32 [2, N] within [-1, 1]; its first sample plays with frame 0.

        The audio codec clamps, so NaN, Inf or a louder sample is a fault upstream: ``NumericsError``, never a crackle.
        """
        if self.sample_rate_hz is None:
            raise self._error("a wave was given for a file without an audio stream")
        if self._wave_given:
            raise self._error("the wave was given twice")
        if wave.dtype != np.float32 or wave.ndim != 2 or wave.shape[0] != 2:
            raise self._error(f"the wave must be float32 [2, N], got {_describe(wave)}")
        check_wave(wave)
        self._wave_given = True
        self._put("wave", np.clip(wave, -1.0, 1.0))

    def _put(self, kind: str, data: np.ndarray) -> None:
        self._raise_failure()
        if kind != "wave":
            self.num_frames += len(data)
        self._queue.put((kind, data))

    def _open(self) -> None:
        options = {
            "movflags": "+faststart",
            "fflags": "+bitexact",  # no muxer version and no creation time: same input, same bytes
            "max_interleave_delta": "0",  # a wave handed in last is interleaved as well as one handed in first
        }
        if self.sample_rate_hz is not None:
            # Edit lists count in the film's clock, by default of 1 ms: this one holds frames and samples exactly.
            options["movie_timescale"] = str(math.lcm(self.fps, self.sample_rate_hz))
        container = av.open(os.fspath(self._temp), "w", format="mp4", options=options)
        self._container = container
        container.metadata[METADATA_KEY] = self._metadata
        # x264's macroblock tree is not repeatable: 13 of 1,000 runs over equal pixels gave other packets, without 0.
        x264 = {"preset": self._preset, "crf": str(self._crf), "mbtree": "0"}
        video = container.add_stream("libx264", rate=self.fps, options=x264)
        video.width, video.height, video.pix_fmt = self.width, self.height, "yuv420p"
        context = video.codec_context
        context.thread_count = self._threads
        context.gop_size = 2 * self.fps
        context.color_range, context.colorspace = _LIMITED, _BT709
        context.color_primaries, context.color_trc = _BT709, _BT709
        self._video = video
        if self.sample_rate_hz is not None:
            self._audio = container.add_stream("aac", rate=self.sample_rate_hz, layout="stereo")
            self._audio.codec_context.bit_rate = AAC_BIT_RATE

    def _run(self) -> None:
        """The thread: encodes what comes, and after a failure only empties the queue so that nobody waits for it."""
        container = self._container
        assert container is not None
        next_pts = 0
        while (item := self._queue.get()) is not _END:
            if self._failure is not None or self._abandoned.is_set():
                continue
            kind, data = item
            try:
                if kind == "wave":
                    self._encode_wave(container, data)
                else:
                    for picture in data:
                        if self._abandoned.is_set():
                            break
                        self._encode_picture(container, picture, next_pts)
                        next_pts += 1
            except BaseException as exc:
                self._failure = exc
        try:
            if self._failure is None and not self._abandoned.is_set():
                container.mux(self._video.encode(None))
                if self._audio is not None:
                    container.mux(self._audio.encode(None))
        except BaseException as exc:
            self._failure = exc
        try:
            container.close()  # writes the index and moves it to the front
        except BaseException as exc:
            self._failure = self._failure or exc

    def _encode_picture(self, container: OutputContainer, picture: np.ndarray, pts: int) -> None:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
        frame.pts, frame.time_base = pts, Fraction(1, self.fps)
        container.mux(self._video.encode(frame))

    def _encode_wave(self, container: OutputContainer, wave: np.ndarray) -> None:
        assert self._audio is not None
        assert self.sample_rate_hz is not None
        for start in range(0, wave.shape[1], AAC_FRAME_SAMPLES):
            if self._abandoned.is_set():
                return
            block = np.ascontiguousarray(wave[:, start : start + AAC_FRAME_SAMPLES])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
            frame.sample_rate = self.sample_rate_hz
            frame.pts, frame.time_base = start, Fraction(1, self.sample_rate_hz)
            container.mux(self._audio.encode(frame))

    def _finish(self) -> None:
        self._raise_failure()
        if not self.num_frames:
            raise self._error("no frame was written")
        if self.sample_rate_hz is not None and not self._wave_given:
            raise self._error("no wave was written")
        assert self._thread is not None
        self._queue.put(_END)
        self._thread.join()
        self._thread = None
        self._raise_failure()
        try:
            with open(self._temp, "rb") as file:
                os.fsync(file.fileno())  # network disks report a full disk only here
            os.replace(self._temp, self._target)
        except OSError as exc:
            raise self._error(reason_of(exc)) from exc

    def _abandon(self) -> None:
        self._abandoned.set()
        try:
            if self._thread is not None:
                self._queue.put(_END)
                self._thread.join()
                self._thread = None
        finally:
            self._remove_temp()

    def _remove_temp(self) -> None:
        with contextlib.suppress(OSError):
            self._temp.unlink(missing_ok=True)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._error(reason_of(self._failure)) from self._failure

    def _error(self, reason: str) -> OutputError:
        return cannot_write(self.path, reason)


def write_mp4(
    path: str | os.PathLike[str],
    frames: np.ndarray,
    wave: np.ndarray | None,
    *,
    fps: int = 24,
    sample_rate_hz: int = 32_000,
    metadata: Mapping[str, Any] | None = None,
    preset: str = "veryfast",
    crf: int = 18,
    threads: int | None = None,
) -> None:
    """One call: uint8 [F, H, W, 3] and float32 [2, N] or ``None`` (no audio stream) -> ``path``."""
    if frames.ndim != 4:
        raise OutputError(f"cannot write {path}: frames must be uint8 [F, H, W, 3], got {_describe(frames)}")
    with Mp4Writer(
        path,
        width=frames.shape[2],
        height=frames.shape[1],
        fps=fps,
        sample_rate_hz=None if wave is None else sample_rate_hz,
        metadata=metadata,
        preset=preset,
        crf=crf,
        threads=threads,
    ) as writer:
        if wave is not None:
            writer.write_wave(wave)
        writer.write_frames(frames)


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
