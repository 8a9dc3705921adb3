"""What the corpus does not show: cutting, starting later, resizing on the way, bounds on memory."""

from fractions import Fraction

import numpy as np
import pytest

from talkies.errors import MediaError, TooLarge
from talkies.h3.geometry import Limits
from talkies.media.read import video
from talkies.media.read.readers import read_video
from talkies.media.read.resize import reference_video_size
from talkies.media.write.mp4 import write_mp4
from tests.media import clips, corpus

NUMBERS = list(range(36))


@pytest.fixture(scope="module")
def plain() -> bytes:
    return corpus.video(NUMBERS, sound={})


def shown(clip) -> list[int]:
    return [corpus.number_of(frame) for frame in clip.frames]


def test_the_slots_of_25_fps_are_the_specified_ones():
    assert corpus.constant(6, 25) == [0, 1, 2, 3, 4, 5]
    assert corpus.constant(4, 12) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert corpus.constant(25, 25) == [i for i in range(25) if i != 12]  # [11.52, 12.48) rounds to no slot of its own
    assert len(corpus.constant(30, 30)) == 24


@pytest.mark.parametrize("max_seconds", [0.5, 22 / 24, 1.0])
def test_picture_and_sound_are_cut_to_the_same_length(plain, max_seconds):
    clip = read_video(plain, max_seconds=max_seconds)
    count = round(max_seconds * 24)
    assert shown(clip) == NUMBERS[:count]
    assert clip.audio.shape == (2, int(Fraction(count, 24) * 32_000))


@pytest.mark.parametrize("start_s", [0.25, 0.5, 1.0])
def test_a_later_start_moves_picture_and_sound_together(plain, start_s):
    clip = read_video(plain, max_seconds=10, start_time_s=start_s)
    assert shown(clip) == NUMBERS[round(start_s * 24) :]
    if start_s < 0.5:
        assert np.argmax(np.abs(clip.audio[0]) > 0.25) / 32_000 == pytest.approx(0.5 - start_s, abs=0.002)
    assert clip.audio.shape[1] == pytest.approx((1.5 - start_s) * 32_000, abs=1)


def test_a_start_far_inside_is_sought_and_still_exact(tmp_path):
    frames, events = clips.between_walls(24 * 12)
    write_mp4(tmp_path / "long.mp4", frames, clips.wave_with(events, 12.0))
    whole = read_video(tmp_path / "long.mp4", max_seconds=12)
    part = read_video(tmp_path / "long.mp4", max_seconds=1, start_time_s=8.25)
    assert np.array_equal(part.frames, whole.frames[198:222])
    assert np.abs(part.audio - whole.audio[:, 264_000:296_000]).max() < 1e-6


@pytest.mark.parametrize("start_s", [1.5, 4.5, 1000.0])
def test_a_start_beyond_the_end_says_so(plain, start_s):
    with pytest.raises(MediaError, match=r"start_time_s=.* is outside the source duration"):
        read_video(plain, max_seconds=10, start_time_s=start_s)


def test_frames_are_resized_while_they_are_decoded():
    limits = Limits(spatial_factor=8, canvas_short_edge=64, canvas_max_pixels=64 * 144)
    data = corpus.video(NUMBERS, size=(192, 108), aspect=Fraction(4, 3))
    asked = []

    def size_of(width: int, height: int) -> tuple[int, int]:
        asked.append((width, height))
        return reference_video_size(width, height, limits)

    clip = read_video(data, max_seconds=2, size_of=size_of)
    assert asked == [(256, 108)]  # square pixels, once per clip
    assert clip.frames.shape == (36, 64, 144, 3)
    assert clip.notes == ("pixels of aspect 4/3 made square: 256x108",)


def test_sound_can_be_left_out(plain):
    assert read_video(plain, max_seconds=2, with_audio=False).audio is None


def test_a_clip_that_would_fill_the_memory_is_refused(plain, monkeypatch):
    monkeypatch.setattr(video, "MAX_CLIP_BYTES", 20 * 96 * 64 * 3)
    with pytest.raises(TooLarge, match="when decoded"):
        read_video(plain, max_seconds=2)
    assert len(read_video(plain, max_seconds=0.5).frames) == 12


def test_our_own_clips_read_back_as_they_were(tmp_path):
    frames, events = clips.bouncing(56)
    write_mp4(tmp_path / "clip.mp4", frames, clips.wave_with(events, 56 / 24), crf=4)
    clip = read_video(tmp_path / "clip.mp4", max_seconds=15)
    assert clip.frames.shape == frames.shape
    error = np.mean((clip.frames.astype(float) - frames) ** 2)
    assert 10 * np.log10(255**2 / error) > 38
    assert clip.audio.shape[1] == 32_000 * 56 // 24


@pytest.mark.parametrize(("curve", "word"), [("smpte2084", "PQ"), ("arib-std-b67", "HLG"), ("bt709", None)])
def test_a_phones_hdr_is_noted(curve, word):
    """A phone records HLG by default; read as SDR it is pale, which nobody would know of."""
    options = {"x265-params": f"log-level=0:colorprim=bt2020:transfer={curve}:colormatrix=bt2020nc"}
    data = corpus.video(NUMBERS, codec="libx265", pix_fmt="yuv420p10le", options=options)
    notes = read_video(data, max_seconds=1).notes
    assert [word in note for note in notes] == ([True] if word else [])
