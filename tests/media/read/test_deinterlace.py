import av
import numpy as np
import pytest

from talkies.media.read.readers import read_video
from tests.media import films


def error(pixels: np.ndarray, at_s: float) -> float:
    return float(np.abs(pixels.astype(float) - films.sliding_bar(at_s)).mean())


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_an_interlaced_video_reads_as_whole_pictures_at_the_time_of_their_first_field(codec):
    """The bar moves by two pixels between the fields, which woven pictures show as a comb."""
    clip = read_video(films.interlaced_film(codec=codec), fps=25, max_seconds=1)
    assert len(clip.frames) == 25
    assert clip.notes == (
        "the video is interlaced: each frame is made of its first field, lines between are filled in",
    )
    for i in (0, 1, 12, 24):
        woven = films.sliding_bar(i / 25).copy()
        woven[1::2] = films.sliding_bar((i + 0.5) / 25)[1::2]
        assert error(clip.frames[i], i / 25) < 1.2 < error(woven, i / 25)
        comb = np.abs(np.diff(clip.frames[i][40:80].astype(int), axis=0)).max()
        assert comb <= 8 < np.abs(np.diff(woven[40:80].astype(int), axis=0)).max()


def test_a_later_start_and_the_last_frames_are_in_place():
    film = films.interlaced_film(num_frames=150)
    clip = read_video(film, fps=25, max_seconds=2, start_time_s=4.8)
    assert len(clip.frames) == 30
    still = read_video(film, fps=25, max_seconds=6).frames[120:]
    assert np.abs(clip.frames[1:].astype(int) - still[1:]).max() <= 2  # the first has no neighbour before it


def test_whole_pictures_are_not_touched():
    frames = [
        av.VideoFrame.from_ndarray(films.sliding_bar(i / 25), "rgb24").reformat(format="yuv420p") for i in range(5)
    ]
    data = films.encoded(frames, container="mp4", codec="libx264", fps=25, options={"crf": "4"})
    assert read_video(data, fps=25, max_seconds=1).notes == ()
