"""Colours of pictures: profiles, depths, and what costs nothing because it is refused by its header."""

import numpy as np
import pytest
from PIL import Image

from talkies.errors import TooLarge
from talkies.media.read.image import read_image
from tests.media import corpus, profiles

P3 = profiles.rgb_profile(profiles.DISPLAY_P3, "Display P3")
STORED, MEANT = (183, 72, 54), (198, 62, 45)


def flat(color, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (32, 32), color)


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("PNG", 1), ("JPEG", 3), ("WEBP", 3), ("HEIF", 3), ("AVIF", 3)], ids=lambda v: str(v)
)
def test_a_picture_in_display_p3_reads_as_the_srgb_colour_it_means(kind, tolerance):
    assert np.abs(profiles.srgb_of(STORED, profiles.DISPLAY_P3) - MEANT).max() < 1
    options = {} if kind == "PNG" else {"quality": 100}
    pixels = read_image(corpus.saved(flat(STORED), kind, icc_profile=P3, **options))
    assert np.abs(pixels.astype(int) - MEANT).max() <= tolerance


def test_colours_outside_srgb_end_at_its_edge_and_white_stays_white():
    assert read_image(corpus.saved(flat((255, 0, 0)), "PNG", icc_profile=P3))[0, 0].tolist() == [255, 0, 0]
    assert read_image(corpus.saved(flat((255, 255, 255)), "PNG", icc_profile=P3))[0, 0].tolist() == [255, 255, 255]
    assert read_image(corpus.saved(flat((0, 0, 0)), "PNG", icc_profile=P3))[0, 0].tolist() == [0, 0, 0]


def test_a_profile_is_applied_below_transparency_palettes_and_a_turn():
    clear = flat((*STORED, 255), "RGBA")
    clear.putpixel((0, 0), (*STORED, 0))
    pixels = read_image(corpus.saved(clear, "PNG", icc_profile=P3)).astype(int)
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert np.abs(pixels[5, 5] - MEANT).max() <= 1
    palette = flat(STORED).quantize(2)
    assert np.abs(read_image(corpus.saved(palette, "PNG", icc_profile=P3))[5, 5].astype(int) - MEANT).max() <= 1
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = corpus.saved(flat(STORED).crop((0, 0, 32, 16)), "PNG", icc_profile=P3, exif=exif.tobytes())
    assert read_image(turned).shape == (32, 16, 3)
    assert np.abs(read_image(turned)[5, 5].astype(int) - MEANT).max() <= 1


def test_a_grey_profile_is_applied_to_grey():
    profile = profiles.grey_profile(1.0)  # linear light: a quarter of it is 137 in sRGB
    for picture in (flat(64, "L"), Image.fromarray(np.full((32, 32), 64 * 257, np.uint16))):
        pixels = read_image(corpus.saved(picture, "PNG", icc_profile=profile))
        assert np.abs(pixels[0, 0].astype(int) - 137).max() <= 1


@pytest.mark.parametrize(
    "profile",
    [
        profiles.rgb_profile(profiles.SRGB, "sRGB IEC61966-2.1"),
        b"not a profile",
        P3[:200],
        profiles.grey_profile(1.0),
    ],
    ids=["srgb", "no-profile", "cut", "of-another-kind"],
)
def test_other_profiles_leave_the_pixels_as_they_are(profile):
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    data = corpus.saved(Image.fromarray(picture), "PNG", icc_profile=profile)
    assert np.array_equal(read_image(data), picture)


def test_16_bit_grey_is_rounded_to_the_nearest_level():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    pixels = read_image(corpus.png(256, 256, 16, 0, rows))
    assert np.array_equal(pixels[..., 0], np.round(values / 257).astype(np.uint8))
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_too_many_pixels_are_refused_before_one_is_decoded(monkeypatch):
    def decode(self: Image.Image) -> None:
        raise AssertionError("decoded")

    data = corpus.saved(flat((1, 2, 3)), "PNG")
    assert read_image(data, max_pixels=32 * 32).shape == (32, 32, 3)
    monkeypatch.setattr(Image.Image, "load", decode)
    with pytest.raises(TooLarge, match="picture has 32x32 pixels, over the limit of 1023"):
        read_image(data, max_pixels=32 * 32 - 1, name="picture")
