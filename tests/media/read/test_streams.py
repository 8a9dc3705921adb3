"""Of several tracks the one that a player would play is read, and the rest is spoken of."""

import numpy as np
import pytest
from av.stream import Disposition

from talkies.media.inspect.report import inspect
from talkies.media.read.probe import probe
from talkies.media.read.readers import read_audio, read_video
from tests.media import corpus, films


def level(wave: np.ndarray) -> float:
    return round(float(np.abs(wave).max()), 2)


@pytest.mark.parametrize(("default", "heard"), [(0, 0.1), (1, 0.2), (None, 0.1)])
def test_the_sound_marked_as_default_is_read(default, heard):
    data = films.two_tracks("audio", default)
    notes: list[str] = []
    clip = read_video(data, max_seconds=1)
    assert level(clip.audio) == heard
    assert level(read_audio(data, max_seconds=1, notes=notes)) == heard
    assert inspect(data).rms_dbfs == pytest.approx(20 * np.log10(heard / np.sqrt(2)), abs=0.1)
    marked = ", the file's default," if default is not None else ""
    note = f"sound track {2 if heard == 0.2 else 1} of 2{marked} is read, the rest is left out"
    assert notes == [note]
    assert clip.notes == (note,)


def test_a_commentary_is_not_taken_for_the_sound():
    data = films.two_tracks("audio", None, flags=(Disposition.comment, Disposition(0)))
    assert level(read_video(data, max_seconds=1).audio) == 0.2
    data = films.two_tracks("audio", None, flags=(Disposition.comment, Disposition.hearing_impaired))
    assert level(read_video(data, max_seconds=1).audio) == 0.1


@pytest.mark.parametrize(("default", "first"), [(0, 0), (1, 10), (None, 0)])
def test_the_picture_marked_as_default_is_read(default, first):
    data = films.two_tracks("video", default)
    clip = read_video(data, max_seconds=1)
    assert [corpus.number_of(frame) for frame in clip.frames] == [first + i for i in range(24)]
    assert [note[:16] for note in clip.notes] == [f"picture track {2 if first else 1} "]
    assert probe(data).video is not None


def test_one_track_needs_no_note():
    assert read_video(corpus.video(range(12), sound={}), max_seconds=0.5).notes == ()
