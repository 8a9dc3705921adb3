"""A sound file, or a video's soundtrack -> float32 [2, N] in [-1, 1] at the model's rate.

Order of the steps, as the reference does them: to stereo, cut to the wanted length at the file's own rate, one
resample. Samples are placed by their timestamps, so a soundtrack that begins late stays late.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction

import av
import numpy as np
from av.container import InputContainer

from talkies.errors import MediaError, NumericsError
from talkies.media.read.container import CONVERT, UNKNOWN_CODEC, open_media, until_end
from talkies.media.read.promised import check_whole, promised_s
from talkies.media.read.streams import sound_stream, unread_sounds

SAMPLE_RATE_HZ = 32_000
# PyAV's default resampler folds 17 kHz back at -26 dB when going 44.1 -> 32 kHz; this one is flat to 15 kHz and below
# -100 dB from 16.5 kHz on, without delay. Measured in tests/media/read/test_audio.py.
RESAMPLE_FILTER = "filter_size=256:cutoff=0.96:phase_shift=12"
# Containers with coarse clocks (Matroska: 1 ms) jitter by less than this; a larger step is a real gap.
JITTER_S = 0.02
# An AAC or MP3 tail of silence ends within this many samples of the true end.
MAX_CODEC_PADDING = 4096
# What a header may claim; a silent gap at 4 GHz would fill the memory.
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 384_000
PEAK_TOLERANCE = 1e-3  # rounding of a clamp done in 16 bits
# Lossy codecs overshoot on single peaks, which players cut off unheard; what is over more often, or twice full scale,
# was made too loud.
LOUD_SHARE, LOUD_PEAK = 1e-3, 2.0

_LEFT = {"FL": 1.0, "FC": math.sqrt(0.5), "BL": math.sqrt(0.5), "SL": math.sqrt(0.5), "FLC": 1.0, "BC": 0.5}
_RIGHT = {"FR": 1.0, "FC": math.sqrt(0.5), "BR": math.sqrt(0.5), "SR": math.sqrt(0.5), "FRC": 1.0, "BC": 0.5}
_SCALE = {"u8": 128.0, "s16": 32768.0, "s32": 2147483648.0, "flt": 1.0, "dbl": 1.0}


def read_audio(
    source: str | os.PathLike[str] | bytes,
    *,
    max_seconds: float,
    start_time_s: float = 0.0,
    sample_rate_hz: int = SAMPLE_RATE_HZ,
    name: str | None = None,
    notes: list[str] | None = None,
) -> np.ndarray:
    """float32 [2, N]: at most ``max_seconds`` from ``start_time_s`` on, N = ceil(samples * rate / own rate).

    Mono is duplicated, more than two channels are mixed down (ITU weights, no LFE, scaled so that nothing clips).
    ``notes`` gains a line for each thing that the user should know of.
    Raises ``MediaError``: no audio stream, unreadable, truncated, non-finite samples, start beyond the end.
    """
    notes = [] if notes is None else notes
    with open_media(source, name) as (container, label):
        if not container.streams.audio:
            raise MediaError(f"{label} has no audio stream", hint="use a file with sound", param=label)
        notes += unread_sounds(container)
        wave, rate = decode_native(container, label, max_seconds=max_seconds, start_time_s=start_time_s)
    if not wave.shape[1]:
        raise MediaError(
            f"{label}: start_time_s={start_time_s:g} is outside the source duration",
            hint="start earlier",
            param=label,
        )
    return resample(within_full_scale(wave, notes), rate, sample_rate_hz)


def decode_native(
    container: InputContainer,
    label: str,
    *,
    max_seconds: float,
    start_time_s: float = 0.0,
    origin_s: Fraction | None = None,
) -> tuple[np.ndarray, int]:
    """The audio stream that is played as (float32 [2, n], its own rate), n <= max_seconds * rate.

    ``origin_s`` is the container time that counts as 0 (default: the stream's first sample); what plays before it is
    cut and a later beginning is filled with silence, so a soundtrack stays beside its picture.
    """
    stream = sound_stream(container)
    assert stream is not None
    if stream.codec_context is None:  # PyAV 18.0 and older would crash
        raise MediaError(f"{label} {UNKNOWN_CODEC}", hint=CONVERT, param=label)
    promised = promised_s(container, stream)
    blocks: list[np.ndarray] = []
    filled = 0  # samples of the wave already in `blocks`
    # In samples of the wave: where the sound begins, and where the next frame follows. Both are negative before the
    # start, which is never sought: some containers stamp some frames only, so each place follows from the one before.
    first = following = 0
    rate = channels = limit = 0
    begin = Fraction(0)
    for frame in until_end(container.decode(stream)):
        if frame.samples == 0:
            continue
        time = frame_time(frame)
        is_first = not rate
        if time is None and rate and container.format.name == "flac":  # it finds its way again without the place
            raise MediaError(f"{label} is damaged: samples are missing", hint="export the file again", param=label)
        if is_first:
            rate, channels = frame.sample_rate, len(frame.layout.channels)
            if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
                raise MediaError(
                    f"{label} has a sample rate of {rate} Hz; {MIN_RATE_HZ} to {MAX_RATE_HZ} can be read",
                    hint="convert it, to 48000 Hz for example",
                    param=label,
                )
            begin = (time or Fraction(0)) if origin_s is None else origin_s
            limit = math.floor(Fraction(max_seconds).limit_denominator(1_000_000) * rate)
        if frame.sample_rate != rate or len(frame.layout.channels) != channels:
            raise MediaError(
                f"{label} changes its sample rate or channels on the way", hint="export the file again", param=label
            )
        block = to_stereo(frame)
        place = following if time is None else round((time - begin - Fraction(start_time_s)) * rate)
        if is_first:
            first = place = place if time is not None else round(-Fraction(start_time_s) * rate)
        elif abs(place - following) <= JITTER_S * rate:
            place = following
        following = place + block.shape[1]
        if place > filled:
            gap = min(place, limit) - filled
            if gap > 0:
                blocks.append(np.zeros((2, gap), np.float32))
                filled += gap
        block = block[:, max(0, filled - place) :]
        block = block[:, : max(0, limit - filled)]
        if block.shape[1]:
            blocks.append(block)
            filled += block.shape[1]
        if filled >= limit:
            break
    else:
        if rate:
            since_origin = Fraction(following, rate) + Fraction(start_time_s)
            check_whole(label, max(since_origin, Fraction(following - first, rate)), promised, " of sound")
    if not rate:
        raise MediaError(f"{label} holds no readable sound", hint="export the file again", param=label)
    wave = np.concatenate(blocks, axis=1) if blocks else np.zeros((2, 0), np.float32)
    if not np.isfinite(wave).all():
        raise MediaError(f"{label} holds samples that are not finite", hint="export the file again", param=label)
    return _cut_padding(wave, rate, stream, container, begin + Fraction(start_time_s)), rate


def within_full_scale(wave: np.ndarray, notes: list[str]) -> np.ndarray:
    """float32 [2, n], scaled down where cutting it off at full scale would be heard, which is noted."""
    level = np.abs(wave)
    peak = float(level.max(initial=0.0))
    if peak <= LOUD_PEAK and np.count_nonzero(level > 1.0) <= LOUD_SHARE * level.size:
        return wave
    notes.append(f"the sound peaks at {20 * math.log10(peak):+.1f} dBFS: it is scaled down to full scale")
    return (wave / np.float32(peak)).astype(np.float32)


def resample(wave: np.ndarray, rate: int, target_rate: int = SAMPLE_RATE_HZ) -> np.ndarray:
    """float32 [2, n] at ``rate`` -> float32 [2, ceil(n * target / rate)], clipped to [-1, 1]. No delay, no aliasing."""
    wanted = -(-wave.shape[1] * target_rate // rate)
    if rate == target_rate:
        return np.clip(wave, -1.0, 1.0)
    graph = av.filter.Graph()
    source = graph.add_abuffer(format="fltp", sample_rate=rate, layout="stereo", time_base=Fraction(1, rate))
    aresample = graph.add("aresample", f"{target_rate}:{RESAMPLE_FILTER}")
    form = graph.add("aformat", "sample_fmts=fltp:channel_layouts=stereo")
    sink = graph.add("abuffersink")
    graph.link_nodes(source, aresample, form, sink).configure()
    parts: list[np.ndarray] = []

    def drain() -> None:
        while True:
            try:
                frame = sink.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            assert isinstance(frame, av.AudioFrame)
            parts.append(frame.to_ndarray())

    for start in range(0, wave.shape[1], 65536):
        block = np.ascontiguousarray(wave[:, start : start + 65536])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        source.push(frame)
        drain()
    source.push(None)
    drain()
    out = np.zeros((2, wanted), np.float32)
    got = np.concatenate(parts, axis=1)[:, :wanted] if parts else out[:, :0]
    out[:, : got.shape[1]] = got
    return np.clip(out, -1.0, 1.0)


def to_stereo(frame: av.AudioFrame) -> np.ndarray:
    """One decoded frame of any format and layout -> float32 [2, n]."""
    names = [channel.name for channel in frame.layout.channels]
    data = frame.to_ndarray()
    if not frame.format.is_planar:
        data = data.reshape(-1, len(names)).T
    kind = frame.format.name.removesuffix("p")
    samples = data.astype(np.float32) / _SCALE.get(kind, 1.0)
    if kind == "u8":
        samples -= 1.0
    if len(names) == 1:
        return np.repeat(samples, 2, axis=0)
    if len(names) == 2:
        return samples
    weights = np.array([[_LEFT.get(n, 0.0) for n in names], [_RIGHT.get(n, 0.0) for n in names]], np.float32)
    if not weights.any(axis=1).all():
        weights = np.ones((2, len(names)), np.float32)  # an unnamed layout: everything to both sides
    weights /= max(1.0, float(weights.sum(axis=1).max()))
    return weights @ samples


def check_wave(wave: np.ndarray) -> None:
    """Raises ``NumericsError`` for a sample that is NaN, infinite or outside [-1, 1]."""
    bad = int(np.count_nonzero(~np.isfinite(wave)))
    if bad:
        raise NumericsError(f"the wave holds {bad} samples that are not finite", param="audio")
    peak = float(np.max(np.abs(wave), initial=0.0))
    if peak > 1 + PEAK_TOLERANCE:
        raise NumericsError(f"the wave peaks at {peak:.4g}, outside [-1, 1]", param="audio")


def frame_time(frame: av.AudioFrame | av.VideoFrame) -> Fraction | None:
    """Presentation time in seconds, exact."""
    if frame.pts is None or not frame.time_base:
        return None
    return Fraction(frame.pts) * frame.time_base


def _cut_padding(
    wave: np.ndarray, rate: int, stream: av.AudioStream, container: InputContainer, begin_s: Fraction
) -> np.ndarray:
    """Without the encoder's tail: AAC fills its last block of 1,024, and only MP4 says exactly where the sound ends."""
    if not container.format.name.startswith("mov") or stream.duration is None or not stream.time_base:
        return wave
    end = round(((stream.start_time or 0) * stream.time_base + stream.duration * stream.time_base - begin_s) * rate)
    return wave[:, :end] if 0 < wave.shape[1] - end <= MAX_CODEC_PADDING and end > 0 else wave
