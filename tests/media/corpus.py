"""Over a hundred nasty files, made on the spot: each has its right pixels or samples, or one clear refusal.

Pictures show four coloured quadrants, so a wrong turn shows. Frame i of a video has a lower half of grey 16 + 6 i, so
every decoded frame says which source frame it is. Sounds are a tone that starts at a known time.

    python -m tests.media.corpus FOLDER      writes all of them
"""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import wave as wavefile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

import talkies.media.read.image  # noqa: F401  (registers the HEIF writer too)

RED, GREEN, BLUE, YELLOW = (220, 30, 30), (30, 190, 60), (40, 60, 220), (230, 210, 40)
QUADRANTS = (RED, GREEN, BLUE, YELLOW)  # top left, top right, bottom left, bottom right


@dataclass(frozen=True, kw_only=True)
class Case:
    """``refusal`` is a pattern of the message; otherwise ``expect`` holds what the check of this kind looks at."""

    name: str
    kind: str  # image, video, audio
    make: Callable[[], bytes]
    refusal: str | None = None
    expect: dict[str, Any] | None = None


# --- pictures ---------------------------------------------------------------------------------------------------------


def quadrants(width: int = 48, height: int = 32) -> np.ndarray:
    picture = np.empty((height, width, 3), np.uint8)
    h, w = height // 2, width // 2
    picture[:h, :w], picture[:h, w:], picture[h:, :w], picture[h:, w:] = QUADRANTS
    return picture


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def upright(width: int = 48, height: int = 32) -> Image.Image:
    return Image.fromarray(quadrants(width, height))


_T = Image.Transpose
STORED_AS = {
    1: None,
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_90,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_270,
}


def oriented(orientation: int, kind: str, **options: Any) -> bytes:
    turn = STORED_AS[orientation]
    image = upright() if turn is None else upright().transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, kind, exif=exif.tobytes(), **options)


def png(width: int, height: int, depth: int, color: int, rows: bytes, *, damage: bool = False) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data) ^ (1 if damage and kind == b"IHDR" else 0)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png16(channels: int) -> bytes:
    picture = quadrants().astype(np.uint16) * 257
    samples = picture if channels == 3 else picture[..., :1]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    return png(48, 32, 16, 2 if channels == 3 else 0, rows)


def alpha_png() -> bytes:
    rgba = np.dstack([quadrants(), np.full((32, 48), 255, np.uint8)])
    rgba[16:, 24:, 3] = 0  # the last quadrant lets the white through
    return saved(Image.fromarray(rgba), "PNG")


def palette_png(transparent: bool) -> bytes:
    image = upright().quantize(8)
    if not transparent:
        return saved(image, "PNG")
    return saved(image, "PNG", transparency=image.getpixel((40, 28)))


def jpeg_with_size(width: int, height: int) -> bytes:
    data = bytearray(saved(upright(), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def images() -> Iterator[Case]:
    def good(name: str, make: Callable[[], bytes], **expect: Any) -> Case:
        return Case(name=name, kind="image", make=make, expect={"tolerance": 12, "colors": QUADRANTS, **expect})

    def bad(name: str, make: Callable[[], bytes], refusal: str) -> Case:
        return Case(name=name, kind="image", make=make, refusal=refusal)

    half_white = (*QUADRANTS[:3], (255, 255, 255))
    grey = tuple((round(0.299 * r + 0.587 * g + 0.114 * b),) * 3 for r, g, b in QUADRANTS)
    red_only = tuple((r,) * 3 for r, _, _ in QUADRANTS)
    for orientation in STORED_AS:
        yield good(f"exif-{orientation}.jpg", lambda o=orientation: oriented(o, "JPEG", quality=95))
        yield good(f"exif-{orientation}.webp", lambda o=orientation: oriented(o, "WEBP", lossless=True))
    yield good("exif-6.png", lambda: oriented(6, "PNG"))
    yield good("exif-6.heic", lambda: oriented(6, "HEIF", quality=95), tolerance=20)
    yield good("exif-6.avif", lambda: oriented(6, "AVIF", quality=95), tolerance=20)
    yield good("plain.heic", lambda: saved(upright(64, 48), "HEIF", quality=95), size=(64, 48), tolerance=20)
    yield good("plain.avif", lambda: saved(upright(), "AVIF", quality=95), tolerance=20)
    yield good("progressive.jpg", lambda: saved(upright(), "JPEG", progressive=True, quality=95))
    yield good("odd.jpg", lambda: saved(upright(47, 31), "JPEG", quality=95), size=(47, 31))
    yield good("cmyk.jpg", lambda: saved(upright().convert("CMYK"), "JPEG", quality=95), tolerance=25)
    yield good("grey.jpg", lambda: saved(upright().convert("L"), "JPEG", quality=95), colors=grey)
    yield good("mpo.jpg", lambda: saved(upright(), "MPO", save_all=True, append_images=[upright()], quality=95))
    yield good("broken-exif.jpg", lambda: saved(upright(), "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff"))
    yield good("a-jpeg-named.png", lambda: saved(upright(), "JPEG", quality=95))
    yield good("rgb.png", lambda: saved(upright(), "PNG"), tolerance=0)
    yield good("rgb16.png", lambda: png16(3), tolerance=1)
    yield good("grey16.png", lambda: png16(1), colors=red_only, tolerance=1)
    yield good("grey.png", lambda: saved(upright().convert("L"), "PNG"), colors=grey, tolerance=1)
    yield good("palette.png", lambda: palette_png(False), tolerance=4)
    yield good("palette-transparent.png", lambda: palette_png(True), colors=half_white, tolerance=4)
    yield good("alpha.png", alpha_png, colors=half_white, tolerance=0)
    yield good("bits.png", lambda: png(48, 32, 1, 0, (b"\0" + b"\xff" * 6) * 32), colors=((255,) * 3,) * 4, tolerance=0)
    yield good("one-pixel.png", lambda: saved(Image.new("RGB", (1, 1), RED), "PNG"), size=(1, 1), colors=None)
    yield good("strip.png", lambda: saved(Image.new("RGB", (3000, 1), RED), "PNG"), size=(3000, 1), colors=None)
    yield good("lossy.webp", lambda: saved(upright(), "WEBP", quality=95), tolerance=40)
    yield good(
        "animated.webp",
        lambda: saved(upright(), "WEBP", save_all=True, append_images=[Image.new("RGB", (48, 32))], lossless=True),
    )
    yield good(
        "animated.png", lambda: saved(upright(), "PNG", save_all=True, append_images=[Image.new("RGB", (48, 32))])
    )
    kinds = "must be JPEG, PNG, WEBP, HEIC or AVIF; "
    yield bad(
        "animated.gif", lambda: saved(upright(), "GIF", save_all=True, append_images=[upright()]), kinds + "got GIF"
    )
    yield bad("plain.bmp", lambda: saved(upright(), "BMP"), kinds + "got BMP")
    yield bad("plain.tiff", lambda: saved(upright(), "TIFF"), kinds + "got TIFF")
    yield bad("drawing.svg", lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", kinds + "got SVG")
    yield bad("a-page.jpg", lambda: b"<!DOCTYPE html><html></html>", kinds + "got a web page")
    yield bad("text.png", lambda: b"hello world\n" * 20, kinds)
    yield bad("empty.png", lambda: b"", kinds + "got an empty file")
    yield bad("a-video.jpg", lambda: video([0, 1]), kinds + "got a video")
    yield bad("postscript.jpg", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", kinds)
    yield bad("fake.webp", lambda: b"RIFF\x24\0\0\0WEBPVP8 " + bytes(24), "fake.webp")
    for kind, suffix in (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("HEIF", "heic"), ("AVIF", "avif")):
        yield bad(f"half.{suffix}", lambda k=kind: halved(saved(noise_picture(), k)), rf"half\.{suffix}")
    yield bad("huge.png", lambda: png(60_000, 60_000, 8, 2, b""), "huge.png (has 60000x60000|is too large)")
    yield bad("large.png", lambda: png(6000, 6000, 8, 2, b""), "large.png has 6000x6000 pixels, over the limit")
    yield bad("huge.jpg", lambda: jpeg_with_size(65_000, 65_000), "huge.jpg (has 65000x65000|is too large)")
    yield bad("no-size.png", lambda: png(0, 0, 8, 2, b""), "no-size.png")
    yield bad("no-rows.png", lambda: png(48, 32, 8, 2, b""), "no-rows.png is damaged")
    yield bad("wrong-check.png", lambda: png(48, 32, 8, 2, bytes(145 * 32), damage=True), "wrong-check.png")


def noise_picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 255, (120, 160, 3), dtype=np.uint8))


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


# --- videos -----------------------------------------------------------------------------------------------------------


def numbered(i: int, width: int = 96, height: int = 64) -> np.ndarray:
    frame = np.empty((height, width, 3), np.uint8)
    frame[: height // 2, : width // 2], frame[: height // 2, width // 2 :] = RED, GREEN
    frame[height // 2 :] = 16 + 6 * (i % 36)
    return frame


def number_of(frame: np.ndarray) -> int:
    """Which source frame a decoded one is."""
    height = len(frame)
    return round((float(frame[height * 3 // 4 :].mean()) - 16) / 6)


def slots(times_s: Sequence[Fraction], end_s: Fraction, fps: int = 24) -> list[int]:
    """The rule, written as the specification has it."""
    out: list[int] = []
    bounds = [*times_s, end_s]
    for i in range(len(times_s)):
        first, last = (math.floor((bounds[i + k] - times_s[0]) * fps + Fraction(1, 2)) for k in (0, 1))
        out += [i] * (last - first)
    return out


def constant(count: int, fps: Fraction | int) -> list[int]:
    fps = Fraction(fps)
    return slots([i / fps for i in range(count)], count / fps)


def video(
    frames: Sequence[int],
    *,
    fps: Fraction | int = 24,
    times_s: Sequence[Fraction] | None = None,
    container: str = "mp4",
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (96, 64),
    options: dict[str, str] | None = None,
    muxer: dict[str, str] | None = None,
    rotation: int = 0,
    aspect: Fraction | None = None,
    sound: dict[str, Any] | None = None,
    time_base: Fraction | None = None,
) -> bytes:
    """``frames`` are the numbers to show; ``times_s`` their presentation times where not constant."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=muxer or {}) as file:
        stream = file.add_stream(codec, rate=Fraction(fps), options=options or ({"crf": "4"} if "26" in codec else {}))
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        if aspect:
            stream.codec_context.sample_aspect_ratio = aspect
        base = time_base or (Fraction(1, 90_000) if times_s else 1 / Fraction(fps))
        stream.codec_context.time_base = base
        track = add_sound(file, **sound) if sound is not None else None
        for order, number in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(numbered(number, *size), "rgb24").reformat(format=pix_fmt)
            when = times_s[order] if times_s else order / Fraction(fps)
            frame.pts, frame.time_base = round(when / base), base
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if track:
            track()
    return turned(out.getvalue(), rotation) if rotation else out.getvalue()


def turned(data: bytes, degrees: int) -> bytes:
    """With a display matrix for a turn to the left: x' = a x + c y, y' = b x + d y, in the first track's header."""
    a, b = {90: (0, -1), 180: (-1, 0), 270: (0, 1)}[degrees]
    at = data.index(b"tkhd") + 44
    matrix = struct.pack(">9i", a << 16, b << 16, 0, -b << 16, a << 16, 0, 0, 0, 1 << 30)
    return data[:at] + matrix + data[at + 36 :]


def add_sound(
    file: Any,
    *,
    codec: str = "aac",
    rate: int = 32_000,
    layout: str = "stereo",
    form: str = "fltp",
    seconds: float = 1.5,
    begins_s: float = 0.0,
    tone_at_s: float = 0.5,
) -> Callable[[], None]:
    stream = file.add_stream(codec, rate=rate, layout=layout)
    channels = len(av.AudioLayout(layout).channels)

    def write() -> None:
        samples = tone(rate, seconds, tone_at_s - begins_s)[None].repeat(channels, axis=0)
        resampler = av.AudioResampler(format=form, layout=layout, rate=rate)
        for start in range(0, samples.shape[1], 1024):
            block = np.ascontiguousarray(samples[:, start : start + 1024])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=layout)
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = start + round(begins_s * rate)
            for converted in resampler.resample(frame):
                file.mux(stream.encode(converted))
        file.mux(stream.encode(None))

    return write


def tone(rate: int, seconds: float, at_s: float, hz: float = 500.0) -> np.ndarray:
    t = np.arange(round(rate * seconds)) / rate
    return np.where(t >= at_s, 0.5 * np.sin(2 * np.pi * hz * (t - at_s)), 0).astype(np.float32)


def headers_only(container: str = "mp4") -> bytes:
    """A stream is promised and no frame follows."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options={"movflags": "empty_moov"}) as file:
        stream = file.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        file.start_encoding()
    return out.getvalue()


def only_sound() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        add_sound(file)()
    return out.getvalue()


def damaged(data: bytes, seed: int = 0, share: float = 0.02) -> bytes:
    rng = np.random.default_rng(seed)
    values = np.frombuffer(data, np.uint8).copy()
    hit = rng.integers(len(values) // 4, len(values) * 3 // 4, max(1, int(len(values) * share)))
    values[hit] = rng.integers(0, 256, len(hit))
    return values.tobytes()


def av1(frames: Sequence[int]) -> bytes:
    """SVT-AV1, run by root, makes the calling thread a real-time one, and all that it starts later: undone here."""
    options = {"crf": "5", "preset": "12"}
    if not hasattr(os, "sched_getscheduler"):  # macOS
        return video(frames, codec="libsvtav1", options=options)
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        return video(frames, codec="libsvtav1", options=options)
    finally:
        os.sched_setscheduler(0, policy, parameter)


def videos() -> Iterator[Case]:
    def good(name: str, make: Callable[[], bytes], frames: Sequence[int], **expect: Any) -> Case:
        return Case(name=name, kind="video", make=make, expect={"frames": list(frames), "size": (96, 64), **expect})

    def bad(name: str, make: Callable[[], bytes], refusal: str) -> Case:
        return Case(name=name, kind="video", make=make, refusal=refusal)

    all36 = list(range(36))
    for fps in (Fraction(24_000, 1001), 25, 30, Fraction(30_000, 1001), 48, 50, 60, 120, 12, 15, 10):
        shown = f"{float(fps):g}"
        yield good(f"rate-{shown}.mp4", lambda f=fps: video(all36, fps=f), constant(36, fps))
        if fps in (48, 60, 30, Fraction(30_000, 1001)):  # clocks of 1 ms cannot hold these times
            yield good(f"rate-{shown}.mkv", lambda f=fps: video(all36, fps=f, container="matroska"), constant(36, fps))
    yield good("plain.mp4", lambda: video(all36, sound={}), all36, sound_at=0.5)
    times = [Fraction(n, 1000) for n in (0, 33, 50, 140, 150, 160, 300, 500, 501, 800)]
    vfr = slots(times, times[-1] + Fraction(1, 24))
    yield good("vfr.mp4", lambda: video(range(10), times_s=times), vfr, tail=1)
    yield good("vfr.mkv", lambda: video(range(10), times_s=times, container="matroska"), vfr, tail=1)
    late = [Fraction(1, 2) + Fraction(i, 24) for i in range(36)]
    yield good("picture-late.mp4", lambda: video(all36, times_s=late, sound={"tone_at_s": 1.0}), all36, sound_at=0.5)
    yield good("sound-late.mp4", lambda: video(all36, sound={"begins_s": 0.25, "seconds": 1.2}), all36, sound_at=0.5)
    yield good("b-frames.mp4", lambda: video(all36, options={"bf": "3", "b-adapt": "0", "crf": "4"}), all36)
    yield good("no-b-frames.mp4", lambda: video(all36, options={"bf": "0", "crf": "4"}), all36)
    yield good("open-gop.mp4", lambda: video(all36, options={"x264-params": "open-gop=1:keyint=8", "crf": "4"}), all36)
    fragmented = {"movflags": "frag_keyframe+delay_moov+default_base_moof"}
    yield good("fragments.mp4", lambda: video(all36, muxer=fragmented, sound={}), all36, sound_at=0.5)
    for turn in (90, 180, 270):
        size = (96, 64) if turn == 180 else (64, 96)
        yield good(
            f"turned-{turn}.mov",
            lambda t=turn: video(all36, container="mov", rotation=t),
            [],
            size=size,
            corners={90: (GREEN, None, RED, None), 180: (None, None, GREEN, RED), 270: (None, RED, None, GREEN)}[turn],
            count=36,
        )
    wide = Fraction(4, 3)
    yield good("wide-pixels.mp4", lambda: video(all36, aspect=wide), all36, size=(128, 64))
    yield good("tall-pixels.mkv", lambda: video(all36, aspect=1 / wide, container="matroska"), all36, size=(72, 64))
    yield good(
        "turned-wide.mp4", lambda: video(all36, aspect=wide, rotation=90), [], size=(64, 128), count=36, corners=None
    )
    yield good("odd.mp4", lambda: video(all36, size=(97, 65), pix_fmt="yuv444p"), all36, size=(97, 65))
    yield good("444.mp4", lambda: video(all36, pix_fmt="yuv444p"), all36)
    yield good("10-bit.mp4", lambda: video(all36, pix_fmt="yuv420p10le"), all36)
    yield good("full-range.mp4", lambda: video(all36, pix_fmt="yuvj420p"), all36)
    yield good(
        "hevc.mp4", lambda: video(all36, codec="libx265", options={"crf": "4", "x265-params": "log-level=0"}), all36
    )
    yield good(
        "vp9.webm", lambda: video(range(12), codec="libvpx-vp9", container="webm", options={"crf": "4"}), range(12)
    )
    yield good("av1.mp4", lambda: av1(range(12)), range(12))
    yield good("prores.mov", lambda: video(all36, codec="prores_ks", pix_fmt="yuv422p10le", container="mov"), all36)
    yield good("mjpeg.avi", lambda: video(all36, codec="mjpeg", pix_fmt="yuvj420p", container="avi"), all36)
    yield good(
        "mpeg4.avi",
        lambda: video(range(12), codec="mpeg4", container="avi", options={"qmin": "1", "qmax": "1"}),
        range(12),
    )
    yield good("stream.ts", lambda: video(all36, container="mpegts", sound={}), all36, sound_at=0.5, slack_s=0.05)
    yield good("old.flv", lambda: video(all36, container="flv"), all36)
    yield good("an-mp4-named.avi", lambda: video(all36), all36)
    yield good("one-frame.mp4", lambda: video([5]), [5])
    for name, sound in {
        "mono": {"layout": "mono"},
        "5.1": {"layout": "5.1", "rate": 48_000},
        "8-khz": {"rate": 8_000},
        "44.1-khz": {"rate": 44_100},
        "96-khz": {"rate": 96_000},
        "mp3": {"codec": "libmp3lame", "rate": 48_000},
        "short": {"seconds": 0.9},
        "long": {"seconds": 4.0},
    }.items():
        yield good(f"sound-{name}.mp4", lambda s=sound: video(all36, sound=s), all36, sound_at=0.5, slack_s=0.03)
    opus = {"codec": "libopus", "rate": 48_000}
    yield good("sound-opus.mkv", lambda: video(all36, container="matroska", sound=opus), all36, sound_at=0.5)
    readable = "is not a media file that can be read"
    yield bad("no-frames.mp4", headers_only, "no-frames.mp4|cannot read frames")
    yield bad("only-sound.mp4", only_sound, "has no video stream")
    yield bad("cover.mp3", mp3_with_cover, "has no video stream")
    yield bad("empty.mp4", lambda: b"", "empty.mp4 is empty")
    yield bad("text.mp4", lambda: b"hello world\n" * 100, readable)
    yield bad("zeros.mp4", lambda: bytes(10_000), readable)
    yield bad("a-picture.mp4", lambda: saved(upright(), "PNG"), readable)
    yield bad("animation.gif", lambda: saved(upright(), "GIF", save_all=True, append_images=[upright()]), readable)
    yield bad("index-cut.mp4", lambda: halved(video(all36, sound={})), readable)
    yield bad("data-cut.mp4", lambda: cut_mp4(), r"data-cut\.mp4 is (truncated|damaged)")
    yield bad("data-cut.mkv", lambda: halved(noisy_video("matroska")), r"data-cut\.mkv is (truncated|damaged)")
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"
    yield bad("a-playlist.mp4", lambda: playlist, readable)
    yield bad("a-script.mp4", lambda: b"ffconcat version 1.0\nfile /etc/hostname\n", readable)
    yield bad("a-session.mp4", lambda: b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 5004 RTP/AVP 96\n", readable)
    yield bad(
        "a-manifest.mp4", lambda: b'<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"/>', readable
    )


def noisy_video(container: str, **options: Any) -> bytes:
    out = io.BytesIO()
    rng = np.random.default_rng(0)
    with av.open(out, "w", format=container, **options) as file:
        stream = file.add_stream("libx264", rate=24, options={"crf": "20", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(48):
            picture = rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


def cut_mp4() -> bytes:
    """The index in front is whole, half of the pictures behind it is missing."""
    data = noisy_video("mp4", options={"movflags": "frag_keyframe+delay_moov"})
    whole = remuxed(data)
    return whole[: int(len(whole) * 0.55)]


def remuxed(data: bytes) -> bytes:
    """With the index moved to the front by hand: its box, then the data, offsets corrected."""
    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format="mp4") as file:
        stream = file.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
    plain = out.getvalue()
    at = plain.index(b"moov") - 4
    index, before = bytearray(plain[at:]), plain[:at]
    head = before.index(b"ftyp") - 4
    ftyp_size = struct.unpack(">I", before[head : head + 4])[0]
    table = index.index(b"stco") + 8
    (count,) = struct.unpack(">I", index[table : table + 4])
    for i in range(count):
        place = table + 4 + 4 * i
        (offset,) = struct.unpack(">I", index[place : place + 4])
        index[place : place + 4] = struct.pack(">I", offset + len(index))
    return before[:ftyp_size] + bytes(index) + before[ftyp_size:]


# --- sounds -----------------------------------------------------------------------------------------------------------


def wav(samples: np.ndarray, rate: int, width: int = 2) -> bytes:
    """PCM of [C, N]: 1 (unsigned), 2, 3 or 4 bytes a sample."""
    out = io.BytesIO()
    full = np.clip(samples.T.astype(np.float64), -1, 1) * (2 ** (8 * width - 1) - 1)
    if width == 1:
        data = (full + 128).round().astype(np.uint8).tobytes()
    else:
        data = full.round().astype("<i4").reshape(-1, 1).view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    with wavefile.open(out, "wb") as file:
        file.setparams((samples.shape[0], width, rate, 0, "NONE", ""))
        file.writeframes(data)
    return out.getvalue()


def float_wav(samples: np.ndarray, rate: int) -> bytes:
    data = samples.T.astype("<f4").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 2, rate, rate * 8, 8, 32)
    return head + struct.pack("<4sI", b"data", len(data)) + data


def compressed(container: str, **sound: Any) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        add_sound(file, **sound)()
    return out.getvalue()


def mp3_with_cover() -> bytes:
    body = compressed("mp3", codec="libmp3lame", rate=44_100)
    cover = saved(upright(), "PNG")
    frame = b"\0image/png\0\x03\0" + cover
    tag = b"APIC" + struct.pack(">I", len(frame)) + b"\0\0" + frame
    size = len(tag)
    syncsafe = bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0))
    start = 0
    if body[:3] == b"ID3":
        start = 10 + sum(b << s for b, s in zip(body[6:10], (21, 14, 7, 0), strict=True))
    return b"ID3\x03\0\0" + syncsafe + tag + body[start:]


def sounds() -> Iterator[Case]:
    def good(name: str, make: Callable[[], bytes], **expect: Any) -> Case:
        expect = {"seconds": 1.5, "sound_at": 0.5, "slack_s": 0.002, **expect}
        return Case(name=name, kind="audio", make=make, expect=expect)

    def bad(name: str, make: Callable[[], bytes], refusal: str) -> Case:
        return Case(name=name, kind="audio", make=make, refusal=refusal)

    def stereo(rate: int) -> np.ndarray:
        return tone(rate, 1.5, 0.5)[None].repeat(2, axis=0)

    for width in (1, 2, 3, 4):
        yield good(f"pcm-{8 * width}.wav", lambda w=width: wav(stereo(48_000), 48_000, w))
    yield good("float.wav", lambda: float_wav(stereo(44_100), 44_100))
    yield good("mono.wav", lambda: wav(stereo(32_000)[:1], 32_000))
    yield good("8-khz.wav", lambda: wav(stereo(8_000), 8_000))
    yield good("96-khz.wav", lambda: wav(stereo(96_000), 96_000))
    yield good("quad.wav", lambda: wav(stereo(48_000).repeat(2, axis=0), 48_000))
    yield good("7-channels.wav", lambda: wav(stereo(48_000)[:1].repeat(7, axis=0), 48_000))
    yield good("constant.mp3", lambda: compressed("mp3", codec="libmp3lame", rate=44_100), slack_s=0.03)
    yield good("cover-art.mp3", mp3_with_cover, slack_s=0.06)
    yield good("apple.m4a", lambda: compressed("ipod", rate=44_100))
    yield good("raw.aac", lambda: compressed("adts", rate=44_100), slack_s=0.08)
    yield good("free.flac", lambda: compressed("flac", codec="flac", rate=44_100, form="s16"))
    yield good("voice.opus", lambda: compressed("ogg", codec="libopus", rate=48_000), slack_s=0.02)
    yield good("from-a-video.mp4", lambda: video(range(36), sound={}), seconds=1.5)
    yield good("a-wav-named.mp3", lambda: wav(stereo(32_000), 32_000))
    yield good("size-unknown.wav", lambda: unsized(wav(stereo(32_000), 32_000)))
    nan = np.full((2, 1000), np.nan, np.float32)
    yield bad("not-a-number.wav", lambda: float_wav(nan, 32_000), "not finite")
    yield bad("no-samples.wav", lambda: wav(np.zeros((2, 0)), 32_000), "no-samples.wav")
    yield bad("empty.wav", lambda: b"", "is empty")
    yield bad("text.wav", lambda: b"hello world\n" * 100, "is not a media file that can be read")
    yield bad("header.wav", lambda: wav(stereo(32_000), 32_000)[:20], "header.wav")
    yield bad("silent-picture.mp4", lambda: video(range(12)), "has no audio stream")


def unsized(data: bytes) -> bytes:
    """As a recorder leaves it that wrote to a pipe: all sizes are at their maximum."""
    at = data.index(b"data") + 4
    return data[:4] + b"\xff" * 4 + data[8:at] + b"\xff" * 4 + data[at + 4 :]


def cases() -> list[Case]:
    return [*images(), *videos(), *sounds()]


def main(folder: str) -> None:
    for case in cases():
        path = Path(folder) / case.kind / case.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case.make())


if __name__ == "__main__":
    main(sys.argv[1])
