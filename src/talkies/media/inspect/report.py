"""What is in a clip, measured: streams, level, sync, and the faults worth a flag. The numbers of ``talkies inspect``.

flag                    meaning
----------------------  --------------------------------------------------------------------------
no_video, no_audio      the file has no such stream
fps:<rate>              the picture is not at 24 frames a second
vfr                     frames are not evenly spaced
black, black:<a>-<b>    all of it, or from a to b seconds
frozen:<a>-<b>          half a second or longer in which nothing changes
silent                  the sound stays under -60 dBFS
clipped                 the sound is cut off at full scale
audio_starts:<s>        the sound begins over 5 ms later (+) or earlier (-) than the picture
duration_mismatch:<s>   the sound is longer (+) or shorter (-) than the picture by over 0.1 s
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation

from talkies.errors import MediaError
from talkies.media.inspect import sync
from talkies.media.inspect.motion import MAX_SIDE, MotionTrack
from talkies.media.read.audio import decode_native, frame_time
from talkies.media.read.container import MAX_DECODE_PIXELS, open_media, until_end
from talkies.media.read.probe import MediaInfo, probe_container
from talkies.media.read.promised import check_whole, promised_s
from talkies.media.read.streams import picture_stream, sound_stream

EXPECTED_FPS = 24
FROZEN_S = 0.5
BLACK_LUMA = 24  # of 255: the brightest hundredth of a black frame stays below
MAX_SECONDS = 600.0
FLOOR_DBFS = -120.0  # what an all-zero wave reports; JSON has no minus infinity


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectReport:
    """``sync_offset_ms`` > 0: the sound comes after the picture; ``None``: nothing to compare."""

    info: MediaInfo
    num_frames: int
    video_duration_s: float
    audio_duration_s: float
    rms_dbfs: float
    sync_offset_ms: float | None
    flags: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``talkies inspect --json``. A missing stream is ``null``."""
        video, audio = self.info.video, self.info.audio
        return {
            "video": video
            and {
                "codec": video.codec,
                "width": video.width,
                "height": video.height,
                "fps": int(video.fps) if video.fps == int(video.fps) else video.fps,
                "frames": self.num_frames,
                "duration_s": round(self.video_duration_s, 6),
            },
            "audio": audio
            and {
                "codec": audio.codec,
                "sample_rate_hz": audio.sample_rate_hz,
                "channels": audio.channels,
                "duration_s": round(self.audio_duration_s, 6),
                "rms_dbfs": round(self.rms_dbfs, 2),
            },
            "sync_offset_ms": None if self.sync_offset_ms is None else round(self.sync_offset_ms, 1),
            "flags": list(self.flags),
            "request": self.info.request,
        }


def inspect(source: str | os.PathLike[str] | bytes, *, name: str | None = None) -> InspectReport:
    """Decodes the whole clip once (small pictures, so memory stays flat). ``MediaError``: not media, truncated."""
    flags: list[str] = []
    track = MotionTrack()
    luma: list[float] = []
    still: list[bool] = []
    video_s = audio_s = 0.0
    with open_media(source, name) as (container, label):
        info = probe_container(container)
        if info.video is None and info.audio is None:
            raise MediaError(f"{label} has neither picture nor sound", param=label)
        if info.video is not None:
            video_s = _watch(container, label, track, luma, still)
    wave: np.ndarray | None = None
    rate, late_s = 0, 0.0
    if info.audio is not None:
        with open_media(source, name) as (container, label):
            wave, rate = decode_native(container, label, max_seconds=MAX_SECONDS, origin_s=Fraction(0))
            audio_s = wave.shape[1] / rate
            sound = sound_stream(container)
            assert sound is not None
            if track.times_s and sound.start_time is not None and sound.time_base:
                late_s = float(sound.start_time * sound.time_base) - track.times_s[0]
    rms_dbfs = _rms_dbfs(wave)
    if info.video is None:
        flags.append("no_video")
    else:
        flags += _picture_flags(info, track.times_s, luma, still)
    flags += ["no_audio"] if wave is None else _sound_flags(wave, rate, rms_dbfs)
    if abs(late_s) > 0.005:
        flags.append(f"audio_starts:{late_s:+.3f}")
    if info.video is not None and wave is not None and abs(audio_s - video_s) > 0.1:
        flags.append(f"duration_mismatch:{audio_s - video_s:+.3f}")
    offset = None
    if wave is not None and rms_dbfs > sync.SILENCE_DBFS and track.times_s:
        offset = sync.sync_offset_s(track, wave, rate)
    return InspectReport(
        info=info,
        num_frames=len(track.times_s),
        video_duration_s=video_s,
        audio_duration_s=audio_s,
        rms_dbfs=rms_dbfs,
        sync_offset_ms=None if offset is None else offset * 1000,
        flags=tuple(flags),
    )


def _watch(
    container: av.container.InputContainer,
    label: str,
    track: MotionTrack,
    luma: list[float],
    still: list[bool],
) -> float:
    """Fills the measurements frame by frame; returns the picture's duration in seconds."""
    stream = picture_stream(container)
    assert stream is not None
    if stream.codec_context is None:
        raise MediaError(f"{label} uses a video codec that cannot be read", param=label)
    stream.codec_context.options = {"max_pixels": str(MAX_DECODE_PIXELS)}
    stream.thread_type = "AUTO"
    previous: np.ndarray | None = None
    size: tuple[int, int] | None = None
    last: av.VideoFrame | None = None
    for frame in until_end(container.decode(stream)):
        if size is None:
            scale = min(1.0, MAX_SIDE / max(frame.width, frame.height))
            size = max(2, round(frame.width * scale)), max(2, round(frame.height * scale))
        small = frame.reformat(*size, format="rgb24", interpolation=Interpolation.AREA).to_ndarray()
        time = frame_time(frame)
        track.add(float(time) if time is not None else len(luma) / EXPECTED_FPS, small)
        luma.append(float(np.percentile(small @ np.array([0.2126, 0.7152, 0.0722]), 99)))
        if previous is not None:
            change = np.abs(small.astype(np.int16) - previous)
            still.append(bool(change.max() <= 8 and change.mean() <= 0.15))
        previous, last = small, frame
        if track.times_s[-1] > MAX_SECONDS:
            break
    if last is None:
        raise MediaError(f"cannot read frames of {label}", hint="export the file again", param=label)
    step = float(last.duration * last.time_base) if last.duration and last.time_base else 1 / EXPECTED_FPS
    duration = track.times_s[-1] - track.times_s[0] + step
    promised = promised_s(container, stream)
    check_whole(label, duration, promised and min(promised, Fraction(MAX_SECONDS)), " of picture")
    return duration


def _picture_flags(info: MediaInfo, times_s: list[float], luma: list[float], still: list[bool]) -> list[str]:
    assert info.video is not None
    flags = []
    if abs(info.video.fps - EXPECTED_FPS) > 0.01:
        flags.append(f"fps:{info.video.fps:g}")
    steps = np.diff(times_s)
    if len(steps) and float(steps.max() - steps.min()) > 0.004:
        flags.append("vfr")
    step = float(np.median(steps)) if len(steps) else 1 / EXPECTED_FPS
    dark = [value < BLACK_LUMA for value in luma]
    if all(dark):
        return [*flags, "black"]
    flags += [f"black:{times_s[a]:.3f}-{times_s[b - 1] + step:.3f}" for a, b in _runs(dark)]
    # Frames a..b look alike when the b - a changes between them are none.
    flags += [
        f"frozen:{times_s[a]:.3f}-{times_s[b] + step:.3f}"
        for a, b in _runs(still)
        if times_s[b] + step - times_s[a] >= FROZEN_S
    ]
    return flags


def _sound_flags(wave: np.ndarray, rate: int, rms_dbfs: float) -> list[str]:
    flags = []
    if rms_dbfs <= sync.SILENCE_DBFS:
        return ["silent"]
    if np.count_nonzero(np.abs(wave) >= 0.999) > max(8, wave.size // 10_000):
        flags.append("clipped")
    return flags


def _rms_dbfs(wave: np.ndarray | None) -> float:
    if wave is None or not wave.size:
        return FLOOR_DBFS
    mean = float(np.mean(wave.astype(np.float64) ** 2))
    return max(FLOOR_DBFS, 10 * math.log10(mean)) if mean else FLOOR_DBFS


def _runs(values: list[bool]) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of true, end excluded."""
    begin: int | None = None
    for index, value in enumerate([*values, False]):
        if value and begin is None:
            begin = index
        elif not value and begin is not None:
            yield begin, index
            begin = None
