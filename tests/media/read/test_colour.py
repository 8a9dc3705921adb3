"""Flat colours whose right value follows from the definitions of BT.601 and BT.709."""

import io
import itertools

import av
import numpy as np
import pytest
from PIL import Image

from talkies.media.read.colour import rgb_of
from talkies.media.read.readers import read_image, read_video
from talkies.media.write.mp4 import write_mp4
from tests.media import corpus, films

WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114)}  # red and blue, by AVColorSpace
PATCHES = [np.array(color) for color in itertools.product((20, 77, 128, 190, 235), repeat=3)][::3]


def yuv_of(rgb: np.ndarray, matrix: int, full_range: bool, bits: int) -> tuple[int, int, int]:
    red, blue = WEIGHTS[matrix]
    r, g, b = rgb / 255
    y = red * r + (1 - red - blue) * g + blue * b
    u, v = (b - y) / (2 - 2 * blue), (r - y) / (2 - 2 * red)
    top, unit = 2**bits - 1, 2 ** (bits - 8)
    if full_range:
        return round(y * top), round(u * top) + 128 * unit, round(v * top) + 128 * unit
    return round((219 * y + 16) * unit), round((224 * u + 128) * unit), round((224 * v + 128) * unit)


def rgb_by_definition(yuv: tuple[int, int, int], matrix: int, full_range: bool, bits: int) -> np.ndarray:
    red, blue = WEIGHTS[matrix]
    top, unit = 2**bits - 1, 2 ** (bits - 8)
    y, u, v = yuv[0] - (0 if full_range else 16 * unit), yuv[1] - 128 * unit, yuv[2] - 128 * unit
    y, u, v = (y / top, u / top, v / top) if full_range else (y / 219 / unit, u / 224 / unit, v / 224 / unit)
    r, b = y + (2 - 2 * red) * v, y + (2 - 2 * blue) * u
    return np.clip(255 * np.array([r, (y - red * r - blue * b) / (1 - red - blue), b]), 0, 255)


def assert_right(errors: list[np.ndarray]) -> None:
    assert abs(np.mean(errors)) < 0.1
    assert np.abs(errors).max() <= 1


@pytest.mark.parametrize("full_range", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", [1, 5], ids=["bt709", "bt601"])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p12le"])
def test_decoded_planes_become_the_colours_that_they_mean(pix_fmt, matrix, full_range):
    errors = []
    for rgb in PATCHES:
        frame = films.flat((0, 0, 0), pix_fmt, matrix=matrix, full_range=full_range)
        bits = frame.format.components[0].bits
        yuv = yuv_of(rgb, matrix, full_range, bits)
        frame = films.flat(yuv, pix_fmt, matrix=matrix, full_range=full_range)
        right = rgb_by_definition(yuv, matrix, full_range, bits)
        pixels = rgb_of(frame).astype(float)
        assert np.ptp(pixels, axis=(0, 1)).max() == 0
        errors.append(pixels[0, 0] - right)
    assert_right(errors)


@pytest.mark.parametrize("full_range", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", [1, 5], ids=["bt709", "bt601"])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le"])
def test_a_lossless_video_reads_in_its_colours(pix_fmt, matrix, full_range):
    bits = 10 if "10" in pix_fmt else 8
    tagged = [yuv_of(rgb, matrix, full_range, bits) for rgb in PATCHES]
    frames = [films.flat(yuv, pix_fmt, matrix=matrix, full_range=full_range) for yuv in tagged]
    data = films.encoded(frames, container="mp4", codec="libx264", options={"qp": "0"})
    clip = read_video(data, max_seconds=5)
    right = [rgb_by_definition(yuv, matrix, full_range, bits) for yuv in tagged]
    assert_right([pixels[24, 32].astype(float) - color for pixels, color in zip(clip.frames, right, strict=True)])


@pytest.mark.parametrize(("height", "matrix"), [(719, 5), (720, 1)])
def test_untagged_colours_go_by_the_height(height, matrix):
    yuv = yuv_of(np.array((200, 60, 40)), matrix, False, 8)
    pixels = rgb_of(films.flat(yuv, "yuv420p", matrix=2, full_range=False, size=(64, height)))
    assert np.abs(pixels[0, 0] - np.array((200, 60, 40))).max() <= 2


def test_rgb_pictures_of_a_video_are_not_touched():
    picture = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    assert np.array_equal(rgb_of(av.VideoFrame.from_ndarray(picture, "rgb24")), picture)


def test_our_own_clips_read_back_in_their_colours(tmp_path):
    """Eight bits of limited range hold a colour to 1.2 levels: only the mean can be nearer than that."""
    frames = np.stack([np.broadcast_to(rgb, (64, 112, 3)) for rgb in PATCHES]).astype(np.uint8)
    write_mp4(tmp_path / "clip.mp4", frames, None, crf=0)
    errors = read_video(tmp_path / "clip.mp4", max_seconds=5).frames.astype(float) - frames
    assert abs(errors.mean()) < 0.1
    assert np.abs(errors).max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "HEIF", "AVIF"])
def test_pictures_become_the_colours_that_their_planes_mean(kind):
    """FFmpeg shows what planes the encoder wrote, so that its own rounding is not counted."""
    errors = []
    for rgb in PATCHES:
        data = corpus.saved(Image.new("RGB", (64, 64), tuple(int(c) for c in rgb)), kind, quality=100)
        with av.open(io.BytesIO(data)) as container:
            frame = next(container.decode(video=0))
        yuv = [int(np.frombuffer(plane, np.uint8)[0]) for plane in frame.planes][:3]
        right = rgb_by_definition((yuv[0], yuv[1], yuv[2]), 5, frame.color_range == 2, 8)
        errors.append(read_image(data)[32, 32].astype(float) - right)
    assert_right(errors)


def test_a_png_is_read_as_it_is():
    picture = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    assert np.array_equal(read_image(corpus.saved(Image.fromarray(picture), "PNG")), picture)
