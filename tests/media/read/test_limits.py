from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from talkies.errors import MediaError, TooLarge
from talkies.media.read.limits import MIB, MediaLimits, ReferenceTotals, check_audio, check_image, check_video
from talkies.media.read.readers import read_video
from tests.media import corpus
from tests.server.fakes import mp4_bytes as tiny_clip

RELEASED = MediaLimits()
LOOSE = MediaLimits.loose()


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    return corpus.saved(Image.new("RGB", (width, height), corpus.RED), kind)


def film(seconds: float, *, fps: int | Fraction = 24, size: tuple[int, int] = (320, 256), **more) -> bytes:
    return corpus.video([0] * round(seconds * fps), fps=fps, size=size, options={"preset": "ultrafast"}, **more)


def voice(seconds: float, rate: int = 8_000) -> bytes:
    return corpus.wav(np.zeros((1, round(seconds * rate))), rate)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (picture(255, 300), r"dimensions must be in \[256, 5760\] pixels, got 255x300"),
        (picture(5761, 3000, "JPEG"), r"dimensions must be in \[256, 5760\] pixels, got 5761x3000"),
        (picture(300, 800), r"width / height must be in \[0\.4, 2\.5\], got 0\.375"),
        (bytes(31 * MIB), r"exceeds the 30 MiB size limit \(31\.0 MiB\)"),
        (picture(300, 300, "GIF"), "got GIF"),
    ],
    ids=["small", "large", "strip", "bytes", "gif"],
)
def test_a_reference_image_outside_the_limits_names_value_and_limit(data, message):
    with pytest.raises((MediaError, TooLarge), match=message) as caught:
        check_image(data, RELEASED, name="reference image 2")
    assert "reference image 2" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("size", [(256, 256), (640, 256), (256, 640), (5760, 2304)])
def test_a_reference_image_at_the_limit_passes(size):
    check_image(picture(*size), RELEASED, name="image")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: film(1.9), r"duration must be in \[2, 15\] seconds, got 1\.92"),
        (lambda: film(15.1), r"duration must be in \[2, 15\] seconds, got 15\.08"),
        (lambda: film(2, fps=12), r"FPS must be in \[23\.976, 60\], got 12"),
        (lambda: film(2, fps=90), r"FPS must be in \[23\.976, 60\], got 90"),
        (lambda: film(2, size=(240, 320)), "dimensions must be in"),
        (lambda: film(2, container="matroska"), "must be MP4 or MOV, got matroska"),
        (lambda: film(2, codec="mpeg4"), r"must use H\.264 or H\.265 video, got mpeg4"),
        (
            lambda: film(2, sound={"codec": "libopus", "rate": 48_000}),
            "must use AAC or MP3 audio, got opus",
        ),
        (lambda: voice(3), "is not a video: it is a WAV sound"),
    ],
    ids=["short", "long", "slow", "fast", "small", "container", "codec", "soundtrack", "sound"],
)
def test_a_reference_video_outside_the_limits_names_value_and_limit(make, message):
    with pytest.raises(MediaError, match=message) as caught:
        check_video(make(), RELEASED, name="reference video 1")
    assert caught.value.hint


def test_rounding_of_containers_is_forgiven():
    film_s = film(15, fps=25, sound={"seconds": 15.005})
    assert check_video(film_s, RELEASED, name="video").video.frames == 375
    check_audio(voice(15.005), RELEASED, name="audio")
    check_audio(voice(1.995), RELEASED, name="audio")
    with pytest.raises(MediaError, match=r"got 15\.02"):
        check_audio(voice(15.02), RELEASED, name="audio")


@pytest.mark.parametrize(("within_s", "beyond_s"), [(15.009, 15.011), (1.991, 1.989)])
def test_ten_milliseconds_are_forgiven_at_either_end_and_no_more(within_s, beyond_s):
    check_audio(voice(within_s), RELEASED, name="audio")
    with pytest.raises(MediaError, match=r"duration must be in \[2, 15\] seconds"):
        check_audio(voice(beyond_s), RELEASED, name="audio")


@pytest.mark.parametrize("rate", [24, 30])
def test_fifteen_seconds_of_broadcast_video_pass(rate):
    """Rates of n / 1.001: editors keep every frame that begins before the cut, and the last one ends after it."""
    fps = Fraction(rate * 1000, 1001)
    info = check_video(film(15, fps=fps), RELEASED, name="video", totals=ReferenceTotals(limits=RELEASED))
    assert info.video.duration_s == pytest.approx(15.015, abs=1e-3)
    with pytest.raises(MediaError, match=r"\[2, 15\] seconds, got 15\.[01]"):
        check_video(film(15 + 3 / rate, fps=fps), RELEASED, name="video")


def test_a_start_time_must_leave_enough():
    data = film(4)
    check_video(data, RELEASED, name="video", start_time_s=2.0)
    check_video(film(17), RELEASED, name="video", start_time_s=1.0)  # what is over 15 s is cut
    for start, message in ((2.5, r"leaves 1\.50 s"), (4.0, "outside the source duration"), (-1.0, "outside")):
        with pytest.raises(MediaError, match=message) as caught:
            check_video(data, RELEASED, name="video", start_time_s=start)
        assert caught.value.param == "start_time_s"


def test_a_reference_sound_must_be_wav_or_mp3():
    check_audio(corpus.compressed("mp3", codec="libmp3lame", rate=44_100, seconds=3), RELEASED, name="audio")
    with pytest.raises(MediaError, match="must be WAV or MP3, got flac"):
        check_audio(corpus.compressed("flac", codec="flac", form="s16", seconds=3), RELEASED, name="audio")
    with pytest.raises(TooLarge, match="15 MiB"):
        check_audio(bytes(16 * MIB), RELEASED, name="audio")


def add(*items, limits=RELEASED):
    totals = ReferenceTotals(limits=limits)
    for i, (kind, seconds) in enumerate(items, 1):
        totals.add(kind, seconds, f"{kind} {i}")


def test_videos_and_sounds_have_budgets_of_their_own():
    add(("video", 10.0), ("audio", 10.0))  # a soundtrack does not count against the sounds
    add(*[("video", 5.003)] * 3)
    add(*[("video", 100.0)] * 3, limits=LOOSE)
    with pytest.raises(MediaError, match=r"audio 3: reference audios may last at most 15 seconds in total, got 16\.00"):
        add(("video", 15.0), ("audio", 8.0), ("audio", 8.0))
    with pytest.raises(MediaError, match="reference videos may last at most 15 seconds in total"):
        add(("video", 8.0), ("video", 8.0))


def test_checks_of_files_keep_the_books():
    totals = ReferenceTotals(limits=RELEASED)
    sound = corpus.compressed("mp3", codec="libmp3lame", rate=44_100, seconds=8)
    check_audio(sound, RELEASED, name="audio 1", totals=totals)
    with pytest.raises(MediaError, match="audio 2: reference audios may last at most 15 seconds"):
        check_audio(sound, RELEASED, name="audio 2", totals=totals)


def test_loose_limits_take_what_a_tiny_model_makes():
    check_image(picture(64, 112), LOOSE, name="image")
    check_video(film(0.5, size=(112, 64), container="matroska"), LOOSE, name="video")
    check_audio(corpus.compressed("flac", codec="flac", form="s16"), LOOSE, name="audio")


@pytest.mark.parametrize("track", [b"A_AAC", b"V_MPEG4/ISO/AVC"])
def test_a_codec_that_cannot_be_read_is_named_as_that(track):
    """A camera's own sound codec is no damage, and a picture of an unknown one has no size to judge."""
    data = film(1, container="matroska", sound={}).replace(track, track[:-3] + b"XYZ")
    words = r"codec that cannot be read \(convert it to "
    with pytest.raises(MediaError, match=words):
        check_video(data, LOOSE, name="video")
    with pytest.raises(MediaError, match=words):
        read_video(data, max_seconds=1, name="video")
    if track == b"A_AAC":
        with pytest.raises(MediaError, match=words):
            check_audio(data, LOOSE, name="sound")


def test_what_is_cut_off_a_long_video_is_not_counted():
    totals = ReferenceTotals(limits=MediaLimits())
    totals.add("video", 39.0, "video 1")  # read from a start time on, 15 s of it
    with pytest.raises(MediaError, match=r"at most 15 seconds in total, got 17\.00"):
        totals.add("video", 2.0, "video 2")


def test_the_pixels_of_a_request_are_counted_from_headers():
    import struct
    import zlib

    pixels = struct.pack(">I", 4) + b"IDAT" + bytes(8)

    def header_only(width, height):
        """A PNG without pixels: whoever decodes it fails."""
        body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + pixels

    for limits in (MediaLimits(), MediaLimits.loose()):
        assert limits.max_total_pixels == 120_000_000
        totals = ReferenceTotals(limits=limits)
        for i in range(3):
            check_image(header_only(5760, 5760), limits, name=f"image {i + 1}", totals=totals)
        with pytest.raises(TooLarge) as caught:
            check_image(header_only(5760, 5760), limits, name="image 4", totals=totals)
        assert caught.value.message == (
            "image 4: the pictures of a request may have 120000000 pixels in all, with this one of 5760x5760 they have "
            "132710400"
        )
    nine = ReferenceTotals(limits=MediaLimits())
    for i in range(9):
        check_image(header_only(4032, 3024), MediaLimits(), name=f"image {i + 1}", totals=nine)  # a phone's pictures


def test_one_frame_of_a_video_counts_among_the_pixels():
    totals = ReferenceTotals(limits=MediaLimits.loose())
    check_video(tiny_clip(), MediaLimits.loose(), name="video 1", totals=totals)
    assert totals.pixels == 112 * 64
