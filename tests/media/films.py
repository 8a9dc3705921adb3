"""Films and songs with one special thing each: many groups of pictures, several tracks, fields, a flat colour."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import av
import numpy as np
from av.stream import Disposition

from tests.media import corpus


def encoded(
    pictures: Iterable[av.VideoFrame],
    *,
    container: str,
    codec: str,
    fps: int = 24,
    gop: int = 12,
    options: dict[str, str] | None = None,
    bit_rate: int | None = None,
) -> bytes:
    """Frames of one size and format, one after the other."""
    out = io.BytesIO()
    pictures = iter(pictures)
    first = next(pictures)
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=fps, options=options or {})
        stream.width, stream.height, stream.pix_fmt = first.width, first.height, first.format.name
        context = stream.codec_context
        context.gop_size, context.time_base = gop, Fraction(1, fps)
        context.colorspace, context.color_range = first.colorspace, first.color_range
        if bit_rate:
            context.bit_rate = bit_rate
        for order, frame in enumerate([first, *pictures]):
            frame.pts, frame.time_base = order, Fraction(1, fps)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def numbered_film(container: str, codec: str, num_frames: int = 240, **how) -> bytes:
    """Frame i shows ``i % 36`` (``corpus.number_of``), at 24 fps."""
    frames = (
        av.VideoFrame.from_ndarray(corpus.numbered(i), "rgb24").reformat(format="yuv420p") for i in range(num_frames)
    )
    return encoded(frames, container=container, codec=codec, **how)


def flat(values: tuple[int, int, int], pix_fmt: str, *, matrix: int, full_range: bool, size=(64, 48)) -> av.VideoFrame:
    """A frame whose Y, U and V are these; ``matrix`` 1 is BT.709, 5 BT.601, 2 says nothing."""
    frame = av.VideoFrame(*size, pix_fmt)
    deep = frame.format.components[0].bits > 8
    for plane, value in zip(frame.planes, values, strict=True):
        samples = np.full(plane.buffer_size // (2 if deep else 1), value, np.uint16 if deep else np.uint8)
        plane.update(samples.tobytes())
    frame.colorspace, frame.color_range = matrix, 2 if full_range else 1
    return frame


def two_tracks(
    kind: str, default: int | None, *, container: str = "matroska", flags: Sequence[Disposition] = ()
) -> bytes:
    """Two sounds (500 Hz at level 0.1 and 0.2) beside a picture, or two pictures (frames from 0 and from 10 on)."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        starts = (0,) if kind == "audio" else (0, 10)
        pictures = [file.add_stream("libx264", rate=24, options={"crf": "4"}) for _ in starts]
        for stream in pictures:
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        sounds = [file.add_stream("flac", rate=32_000, layout="stereo") for _ in range(2 if kind == "audio" else 0)]
        for i, stream in enumerate(sounds if kind == "audio" else pictures):
            extra = flags[i] if flags else Disposition(0)
            stream.disposition = extra | (Disposition.default if i == default else Disposition(0))
        for i in range(24):
            for stream, start in zip(pictures, starts, strict=True):
                frame = av.VideoFrame.from_ndarray(corpus.numbered(start + i), "rgb24").reformat(format="yuv420p")
                frame.pts, frame.time_base = i, Fraction(1, 24)
                file.mux(stream.encode(frame))
        for level, stream in zip((0.1, 0.2), sounds, strict=False):
            wave = level * np.sin(2 * np.pi * 500 * np.arange(32_000) / 32_000)
            for start in range(0, 32_000, 1000):
                block = np.repeat(wave[None, start : start + 1000], 2, axis=0)
                samples = (block * 32767).round().astype(np.int16).T.reshape(1, -1)
                frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="s16", layout="stereo")
                frame.sample_rate, frame.pts, frame.time_base = 32_000, start, Fraction(1, 32_000)
                file.mux(stream.encode(frame))
        for stream in (*pictures, *sounds):
            file.mux(stream.encode(None))
    return out.getvalue()


def sliding_bar(at_s: float) -> np.ndarray:
    """uint8 [128, 192, 3]: a soft upright bar that moves by 100 pixels a second, for 1.6 s, and then begins again."""
    cover = np.clip(1.5 - np.abs(np.arange(192) - 20 - 100 * (at_s % 1.6)) / 8, 0, 1)
    return np.broadcast_to((40 + 180 * cover)[None, :, None], (128, 192, 3)).round().astype(np.uint8)


_INTERLACED = {
    "libx264": ("mp4", {"x264-params": "interlaced=1", "crf": "4"}),
    "mpeg2video": ("mpegts", {"flags": "+ildct+ilme", "b": "8000000"}),
}


def interlaced_film(num_frames: int = 25, fps: int = 25, codec: str = "libx264") -> bytes:
    """The sliding bar as a camera of fields sees it: the upper field at the frame's time, the lower one half later."""

    def woven() -> Iterator[av.VideoFrame]:
        for i in range(num_frames):
            picture = sliding_bar(i / fps).copy()
            picture[1::2] = sliding_bar((i + 0.5) / fps)[1::2]
            yield av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p")

    graph = av.filter.Graph()
    source = graph.add_buffer(
        width=192, height=128, format=av.VideoFormat("yuv420p", 192, 128), time_base=Fraction(1, fps)
    )
    graph.link_nodes(source, graph.add("setparams", "field_mode=tff"), graph.add("buffersink")).configure()

    def marked() -> Iterator[av.VideoFrame]:
        for i, frame in enumerate(woven()):
            frame.pts, frame.time_base = i, Fraction(1, fps)
            graph.vpush(frame)
            yield graph.vpull()

    container, options = _INTERLACED[codec]
    return encoded(marked(), container=container, codec=codec, fps=fps, options=options)
