"""``--soundtrack`` and ``--footage``: what they ask for, what is refused, and that such a clip can be repeated."""

import json

import numpy as np
import pytest

from talkies.cli.clips.lock_flags import lock
from talkies.errors import InvalidRequest
from talkies.media.write.mp4 import write_mp4
from talkies.request import Condition
from tests.cli.test_cli import talkies


@pytest.mark.parametrize(
    ("window", "times"), [(None, (0.0, None)), ("1.5:3", (1.5, 3.0)), ("1:", (1.0, None)), (":0.5", (0.0, 0.5))]
)
def test_a_flag_becomes_one_condition(window, times):
    start, end = times
    expected = Condition(kind="video", uri="a.mp4", role="footage", start_time_s=start, end_time_s=end)
    assert lock("footage", "a.mp4", "--redo-picture", window) == [expected]
    assert lock("footage", None, "--redo-picture", None) == []


@pytest.mark.parametrize("window", ["", ":", "1", "1-2", "a:b", "1:2:3", "2:1", "nan:1", "-1:2", "0:0"])
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(InvalidRequest):
        lock("soundtrack", "a.wav", "--redo-sound", window)


def test_a_window_without_its_file_is_refused():
    with pytest.raises(InvalidRequest, match="add --soundtrack FILE"):
        lock("soundtrack", None, "--redo-sound", "1:2")


@pytest.mark.slow
def test_a_clip_with_a_lock_is_made_and_repeated(tiny_folder, tmp_path):
    film = tmp_path / "film.mp4"
    shades = np.linspace(0, 250, 30).astype(np.uint8)[:, None, None, None]
    write_mp4(film, np.broadcast_to(shades, (30, 64, 64, 3)).copy(), np.zeros((2, 40_000), np.float32))
    options = ("--footage", "film.mp4", "--redo-picture", "0.5:", "--steps", "3", "--model", tiny_folder)
    done = talkies("generate", "a ball", *options, "--json", "-o", "a.mp4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    (used,) = facts["conditions_used"]
    assert (facts["frames"], used["made_anew"], used["mode"]) == (22, [0.5, 0.917], "training-free")
    again = talkies("generate", "--from", "a.mp4", "-o", "b.mp4", "--model", tiny_folder, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    over = talkies("generate", "x", "--footage", "film.mp4", "-o", "film.mp4", "--model", tiny_folder, cwd=tmp_path)
    assert over.returncode == 2  # an output that is also an input
