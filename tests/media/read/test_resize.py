import numpy as np
import pytest
from PIL import Image

from talkies.errors import InvalidRequest, MediaError
from talkies.h3.geometry import Limits, canvas_of_aspect
from talkies.media.read.resize import (
    FITS,
    fit_image,
    fit_keyframes,
    reference_video_size,
    resize_reference_image,
)

RELEASED = Limits()
TINY = Limits(spatial_factor=8, canvas_short_edge=64, canvas_max_pixels=64 * 144, reference_image_short_edge=64)


def circle(width: int, height: int) -> np.ndarray:
    x, y = np.arange(width) - (width - 1) / 2, (np.arange(height) - (height - 1) / 2)[:, None]
    inside = np.hypot(x, y) < 0.4 * min(width, height)
    return np.where(inside[..., None], 255, 0).astype(np.uint8).repeat(3, axis=2)


def extent(image: np.ndarray) -> tuple[int, int]:
    """(width, height) of what is bright."""
    bright = image[..., 0] > 127
    return int(bright.any(axis=0).sum()), int(bright.any(axis=1).sum())


def reference_cover_crop(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """The pipeline's own lines, in PIL throughout."""
    picture = Image.fromarray(image)
    scale = max(width / picture.size[0], height / picture.size[1])
    size = max(width, round(picture.size[0] * scale)), max(height, round(picture.size[1] * scale))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    resized = picture.resize(size, Image.Resampling.LANCZOS)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


@pytest.mark.parametrize("source", [(321, 199), (77, 131), (1601, 901), (500, 500), (112, 65)])
@pytest.mark.parametrize("canvas", [(112, 64), (64, 112), (352, 192)])
def test_crop_equals_the_reference_to_the_pixel(source, canvas):
    image = np.random.default_rng(0).integers(0, 255, (source[1], source[0], 3), dtype=np.uint8)
    assert np.array_equal(
        fit_image(image, width=canvas[0], height=canvas[1], fit="crop"), reference_cover_crop(image, *canvas)
    )


def test_released_stretches_whoever_is_first_and_crops_the_second():
    first, second = circle(160, 90), circle(90, 160)
    a, b = fit_keyframes([first, second], width=64, height=112, fit="released")
    assert np.array_equal(a, np.asarray(Image.fromarray(first).resize((64, 112), Image.Resampling.LANCZOS)))
    assert np.array_equal(b, reference_cover_crop(second, 64, 112))
    (alone,) = fit_keyframes([second], width=112, height=64)  # as a last frame alone
    assert extent(alone)[0] > 2 * extent(alone)[1]


@pytest.mark.parametrize("fit", ["crop", "pad", "adapt"])
def test_a_circle_stays_a_circle_in_every_fit_but_stretch(fit):
    images = [circle(160, 90), circle(90, 160)]
    width, height = canvas_of_aspect(160 / 90, TINY) if fit == "adapt" else (64, 112)
    fitted = fit_keyframes(images, width=width, height=height, fit=fit)
    checked = fitted if fit == "pad" else fitted[:1] if fit == "adapt" else fitted[1:]
    for image in checked:
        assert image.shape == (height, width, 3)
        wide, tall = extent(image)
        assert abs(wide - tall) <= 2


def test_each_keyframe_can_have_its_own_fit():
    images = [circle(160, 90), circle(160, 90)]
    a, b = fit_keyframes(images, width=64, height=112, fit=["pad", "stretch"])
    assert extent(a)[0] == pytest.approx(extent(a)[1], abs=1)
    assert extent(b)[1] > 2 * extent(b)[0]
    assert not a[:30].any()  # the bars are black


@pytest.mark.parametrize("fit", [f for f in FITS if f != "released"])
def test_a_picture_of_the_canvas_size_is_not_resampled(fit):
    image = np.random.default_rng(1).integers(0, 255, (64, 112, 3), dtype=np.uint8)
    assert np.array_equal(fit_image(image, width=112, height=64, fit=fit), image)


def test_unknown_fit_names_the_known_ones():
    with pytest.raises(InvalidRequest, match="stretch") as caught:
        fit_image(circle(10, 10), width=64, height=64, fit="zoom")
    assert caught.value.param == "fit"


@pytest.mark.parametrize(
    ("size", "expected"), [((1536, 1024), (3072, 2048)), ((400, 1600), (2048, 8192)), ((333, 500), (2048, 3072))]
)
def test_reference_images_take_the_short_edge_and_keep_their_ratio(size, expected):
    image = circle(*size)
    resized = resize_reference_image(image, RELEASED)
    assert resized.shape == (expected[1], expected[0], 3)
    wide, tall = extent(resized)
    assert abs(wide - tall) <= 0.02 * wide


def test_a_reference_image_may_not_be_a_strip():
    with pytest.raises(MediaError, match="hero is 401x100") as caught:
        resize_reference_image(circle(401, 100), RELEASED, name="hero")
    assert caught.value.param == "hero"


def test_reference_videos_get_the_canvas_of_their_own_ratio():
    assert reference_video_size(1920, 1080, RELEASED) == (1344, 768)
    assert reference_video_size(1080, 1920, RELEASED) == (768, 1344)
    assert reference_video_size(1920, 1080, TINY) == (112, 64)
