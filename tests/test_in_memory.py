"""Pictures and sounds from memory: what the engine reads of them is what was given."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Condition, VideoRequest
from talkies.engine.pipeline.condition_media import MediaAccess, load_keyframe, source_of
from talkies.errors import InvalidRequest
from talkies.media.read.readers import read_audio

PICTURE = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)


def png(picture=PICTURE, **rest):
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", **rest)
    return out.getvalue()


@pytest.mark.parametrize(
    "media",
    [
        PICTURE,
        PICTURE.transpose(2, 0, 1),
        PICTURE.astype(np.float32) / 255,
        torch.from_numpy(PICTURE),
        torch.from_numpy(PICTURE).permute(2, 0, 1).double() / 255,
        Image.fromarray(PICTURE),
        png(),
        bytearray(png()),
        np.asfortranarray(PICTURE),
    ],
    ids=lambda media: f"{type(media).__name__}-{getattr(media, 'dtype', '')}-{getattr(media, 'shape', '')}",
)
def test_a_picture_arrives_as_it_was(media):
    condition = Condition(kind="image", uri=media, role="first")
    assert condition.uri.startswith("data:")
    assert np.array_equal(load_keyframe(condition, MediaAccess()), PICTURE)


def test_grey_alpha_and_turned_pictures():
    grey = Condition(kind="image", uri=PICTURE[..., 0])
    assert np.array_equal(load_keyframe(grey, MediaAccess()), np.repeat(PICTURE[..., :1], 3, axis=2))
    clear = np.concatenate([PICTURE, np.zeros_like(PICTURE[..., :1])], axis=2)
    assert (load_keyframe(Condition(kind="image", uri=clear), MediaAccess()) == 255).all()  # laid over white
    turned = Image.fromarray(PICTURE)
    turned.getexif()[0x0112] = 6  # of a camera that was held upright
    assert np.array_equal(load_keyframe(Condition(kind="image", uri=turned), MediaAccess()), np.rot90(PICTURE, -1))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_sound_arrives_as_it_was(as_tensor):
    wave = (0.5 * np.sin(np.arange(2 * 8_000).reshape(2, -1) / 9)).astype(np.float32)
    condition = Condition(kind="audio", uri=(torch.from_numpy(wave) if as_tensor else wave, 32_000))
    source = source_of(condition, MediaAccess(), "sound")
    heard = read_audio(source, max_seconds=1.0, sample_rate_hz=32_000, name="sound", notes=[])
    assert np.array_equal(heard[:, : wave.shape[1]], wave)
    mono = Condition(kind="audio", uri=(list(map(float, wave[0])), 32_000))
    heard = read_audio(source_of(mono, MediaAccess(), "s"), max_seconds=1.0, sample_rate_hz=32_000, name="s", notes=[])
    assert np.array_equal(heard[1, : wave.shape[1]], wave[0])


@pytest.mark.parametrize(
    ("kind", "media", "words"),
    [
        ("image", np.zeros((2, 48, 80, 3), np.uint8), r"an array of shape \(2, 48, 80, 3\) is no picture"),
        ("image", np.zeros((0, 80, 3), np.uint8), "is no picture"),
        ("image", PICTURE.astype(np.int32), r"a picture of int32 must be in 0\.\.1"),
        ("image", PICTURE.astype(np.float32), r"must be in 0\.\.1"),
        ("image", np.full((8, 8, 3), np.nan, np.float32), r"must be in 0\.\.1"),
        ("video", np.zeros((22, 48, 80, 3), np.uint8), "is no video .write it to a file"),
        ("audio", np.zeros((2, 100), np.float32), "is no audio .give .samples, rate in Hz"),
        ("audio", Image.fromarray(PICTURE), "a PIL picture is no audio"),
        ("audio", (np.zeros((2, 100), np.int16), 32_000), "are no sound"),
        ("audio", (np.zeros((2, 100), np.float32), 0), "are no sound"),
        ("audio", [["a"], 32_000], "a pair of list and int is no audio"),
        ("image", 7, "is not text but int .give a path"),
        ("image", None, "is not text but NoneType"),
    ],
)
def test_what_is_no_picture_or_sound_is_refused(kind, media, words):
    with pytest.raises(InvalidRequest, match=words):
        Condition(kind=kind, uri=media)


def test_one_condition_needs_no_tuple():
    one = Condition(kind="image", uri="a.png", role="first")
    assert VideoRequest(prompt="x", conditions=one).conditions == (one,)
    held = VideoRequest(prompt="x", conditions=Condition(kind="image", uri=PICTURE))
    assert VideoRequest.from_dict(held.to_dict()) == held
