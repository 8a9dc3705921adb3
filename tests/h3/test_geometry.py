"""Sizes of clips, worked by hand for the released model."""

import pytest

from talkies.errors import InvalidRequest
from talkies.h3 import geometry
from talkies.h3.geometry import Limits, encodable_frames

RELEASED = Limits()
TINY = Limits(
    spatial_factor=8,
    canvas_short_edge=64,
    canvas_max_pixels=144 * 64,
    min_seconds=0.5,
    max_seconds=5.2,
    max_frames=124,
    default_num_frames=56,
)


@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        ((21, 9), (1536, 672)),
        ((16, 9), (1344, 768)),
        ((2, 1), (1440, 704)),
        ((3, 2), (1152, 768)),
        ((13, 8), (1248, 768)),
        ((4, 3), (1024, 768)),
        ((1, 1), (768, 768)),
        ((3, 4), (768, 1024)),
        ((9, 16), (768, 1344)),
        ((4, 1), (2016, 512)),
    ],
)
def test_released_canvases(ratio, size):
    assert geometry.canvas_of_aspect(ratio[0] / ratio[1], RELEASED) == size


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("21:9", (144, 64)),
        ("16:9", (112, 64)),
        ("4:3", (80, 64)),
        ("1:1", (64, 64)),
        ("3:4", (64, 80)),
        ("9:16", (64, 112)),
    ],
)
def test_embedded_canvases(name, size):
    w, h = geometry.NAMED_RATIOS[name]
    assert geometry.canvas_of_aspect(w / h, TINY) == size


def test_frame_table_of_the_spec():
    frames = [107, 124, 141, 158, 175, 192, 209, 226, 243, 260, 277, 294, 311, 328, 345, 362]
    latents = [32, 37, 42, 47, 52, 57, 62, 67, 72, 77, 82, 87, 92, 97, 102, 107]
    audio = [178, 207, 235, 263, 292, 320, 348, 377, 405, 433, 462, 490, 518, 547, 575, 603]
    assert [geometry.latent_frames_of(f, RELEASED) for f in frames] == latents
    assert [geometry.audio_latents_of(f, RELEASED) for f in frames] == audio


@pytest.mark.parametrize(("seconds", "frames"), [(4, 107), (5, 124), (8.7, 209), (15, 362), (5.0208333, 124)])
def test_seconds_snap_up(seconds, frames):
    assert geometry.frames_of_seconds(seconds, RELEASED) == frames


def test_rows_of_the_reference_clip():
    g = geometry.geometry_of(1248, 768, 209, RELEASED)
    assert (g.rows_per_frame, g.video_rows, g.audio_rows, g.num_samples) == (936, 58_032, 696, 348 * 800)
    assert g.size == "1248x768"
    assert g.duration_s == pytest.approx(8.708, abs=1e-3)


@pytest.mark.parametrize("num_frames", [1, 5, 48, 123, 125])
def test_illegal_lengths_name_a_legal_one(num_frames):
    with pytest.raises(InvalidRequest, match=r"17n\+5") as caught:
        geometry.latent_frames_of(num_frames, RELEASED)
    legal = int(caught.value.hint.split()[1])
    assert geometry.latent_frames_of(legal, RELEASED) > 0


@pytest.mark.parametrize(
    ("width", "height", "word"),
    [(1300, 768, "multiple of 32"), (1345, 768, "1344x768"), (4096, 512, "1:4..4:1"), (1536, 768, "pixels")],
)
def test_canvas_refusals_name_the_way_out(width, height, word):
    with pytest.raises(InvalidRequest, match=word) as caught:
        geometry.check_canvas(width, height, RELEASED)
    assert caught.value.hint
    assert caught.value.param


@pytest.mark.parametrize("aspect", [0.2, 4.5])
def test_extreme_aspect_is_refused(aspect):
    with pytest.raises(InvalidRequest, match="1:4"):
        geometry.canvas_of_aspect(aspect, RELEASED)


def test_min_frames_follows_min_seconds():
    assert RELEASED.min_frames == 107
    assert TINY.min_frames == 22


@pytest.mark.parametrize(("side", "tiles"), [(1, 1), (256, 1), (257, 2), (448, 2), (449, 3), (832, 4), (1152, 6)])
def test_tiles_that_cover_a_side(side, tiles):
    assert geometry.tiles_along(side, tile=256, min_overlap=64) == tiles
    assert side <= 256 * tiles - 64 * (tiles - 1)


@pytest.mark.parametrize(("num_frames", "encoded"), [(22, 22), (23, 22), (38, 22), (39, 39), (124, 124), (5, 5)])
def test_the_longest_prefix_that_is_encoded_has_17n_and_5_frames(num_frames, encoded):
    assert encodable_frames(num_frames, Limits()) == encoded


@pytest.mark.parametrize("limits", [Limits(), Limits(canvas_short_edge=64, canvas_max_pixels=9216, spatial_factor=8)])
def test_every_canvas_that_the_rule_gives_is_legal(limits):
    """A keyframe of any shape between 1:4 and 4:1 makes a clip: 64x160 of the embedded checkpoint is over its cap."""
    for step in range(1, 2000):
        aspect = 0.25 * 16 ** (step / 2000)
        geometry.check_canvas(*geometry.canvas_of_aspect(aspect, limits), limits)
    geometry.check_canvas(*geometry.canvas_of_aspect(40 / 101, limits), limits)
