"""A file of another kind than it was given as is called what it is."""

import io
import wave

import numpy as np
import pytest
from PIL import Image

from talkies.errors import MediaError
from talkies.media.read.content import check_content, content_of
from talkies.media.read.limits import MediaLimits, check_audio, check_image, check_video
from tests.server.fakes import mp4_bytes

CHECKS = {"image": check_image, "video": check_video, "audio": check_audio}


def picture(kind):
    out = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(out, kind)
    return out.getvalue()


def sound():
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.zeros(16_000, np.int16).tobytes())
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "given", "words"),
    [
        (picture("PNG"), "video", "is not a video: it is a PNG picture"),
        (picture("JPEG"), "audio", "is not a sound: it is a JPEG picture"),
        (picture("WEBP"), "video", "is not a video: it is a WebP picture"),
        (picture("GIF"), "video", "is not a video: it is a GIF picture"),
        (mp4_bytes(), "image", "is not an image: it is an MP4 video"),
        (sound(), "image", "is not an image: it is a WAV sound"),
        (sound(), "video", "is not a video: it is a WAV sound"),
        (b"ID3\x04" + bytes(60), "video", "it is an MP3 sound"),
        (b"\0\0\0\x1cftypavif" + bytes(60), "video", "it is an AVIF picture"),
        (b"\0\0\0\x1cftypheic" + bytes(60), "audio", "it is a HEIC picture"),
        (b"\0\0\0\x1cftypqt  " + bytes(60), "image", "it is a QuickTime video"),
    ],
)
def test_content_of_another_kind_is_named(data, given, words):
    with pytest.raises(MediaError, match=words) as caught:
        CHECKS[given](data, MediaLimits.loose(), name="reference 2")
    assert caught.value.message.startswith("reference 2 ")
    assert caught.value.param == "reference 2"
    assert caught.value.hint.startswith("give it as a ")


def test_what_may_be_of_that_kind_passes():
    check_content(mp4_bytes(), "audio", "x")  # the sound of a video
    check_content(b"OggS" + bytes(60), "video", "x")  # Ogg holds either
    check_content(b"\0\0\0\x1cftypmsf1" + bytes(60), "image", "x")  # a brand that we have no word for
    for data, kind in ((picture("PNG"), "image"), (sound(), "audio"), (mp4_bytes(), "video")):
        CHECKS[kind](data, MediaLimits.loose(), name="x")
    assert content_of(b"") is None
    assert content_of(b"RIFF") is None


def test_a_file_on_disk_is_looked_at_as_well(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(picture("PNG"))
    with pytest.raises(MediaError, match="video 1 is not a video: it is a PNG picture"):
        check_video(path, MediaLimits.loose(), name="video 1")
