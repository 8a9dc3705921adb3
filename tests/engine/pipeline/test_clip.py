"""A clip in the hands of a program: what it prints, equals, knows and is saved as."""

import base64
import re

import numpy as np
import pytest
from PIL import Image

from talkies import Condition, Engine, Target, VideoRequest
from talkies.engine.pipeline.clip import Clip
from talkies.engine.port.facts import Facts
from talkies.errors import InvalidRequest, OutputError
from talkies.media.read.probe import probe


def clip(**changes):
    request = VideoRequest(prompt="x", seed=3, **changes)
    facts = Facts(task="t2va", size="32x16", frames=12, seconds=0.5, fps=24, seed=3, num_forwards=2)
    return Clip(
        frames=np.zeros((12, 16, 32, 3), np.uint8),
        audio=np.zeros((2, 16_000), np.float32),
        fps=24,
        sample_rate_hz=32_000,
        request=request,
        metadata={"request": request.to_dict()},
        facts=facts,
    )


def test_it_prints_as_one_line():
    assert repr(clip()) == "<Clip 32x16, 12 frames at 24 a second (0.50 s), sound at 32000 Hz, seed 3>"
    assert "no sound" in repr(clip(audio=False))


def test_it_can_be_compared_and_kept_in_a_set():
    one, other = clip(), clip()
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.gif", "ends in .gif"),
        ("x.wav", "ends in .wav"),
        ("x.webm", "ends in .webm"),
        ("x", "has no extension"),
        (".mp4", "has no extension"),
    ],
)
def test_a_name_that_promises_another_format_is_refused(tmp_path, name, words):
    with pytest.raises(InvalidRequest, match=rf"{re.escape(words)}, and a clip is saved as \.mp4 only") as caught:
        clip().save(tmp_path / name)
    assert caught.value.param == "path"
    assert caught.value.hint.endswith(".mp4")
    assert list(tmp_path.iterdir()) == []


def test_it_is_saved_as_an_mp4(tmp_path):
    assert clip().save(str(tmp_path / "x.MP4")) == tmp_path / "x.MP4"
    assert probe(str(tmp_path / "x.MP4")).request == {"request": clip().request.to_dict()}
    with pytest.raises(OutputError):
        clip().save(tmp_path / "nowhere" / "x.mp4")


def test_a_notebook_shows_a_player_that_holds_the_file(tmp_path):
    made = clip()
    data = re.search(r'src="data:video/mp4;base64,([^"]+)"', made._repr_html_()).group(1)
    assert base64.b64decode(data) == made.save(tmp_path / "x.mp4").read_bytes()


def test_it_says_what_a_file_says(tiny_folder, tmp_path):
    """``generate`` and ``render`` know the same of the same clip: warnings and what became of its conditions, too."""
    Image.new("RGB", (96, 64), "teal").save(tmp_path / "p.png")
    request = VideoRequest(
        prompt="as in <Picture 2>",
        num_sigmas=3,
        seed=5,
        target=Target(num_frames=22),
        conditions=(Condition(kind="image", uri=str(tmp_path / "p.png"), role="first"),),
    )
    engine = Engine.open(tiny_folder)
    made = engine.generate(request)
    (written,) = engine.render(request, [tmp_path / "x.mp4"])
    assert made.facts.warnings == ("the prompt mentions <Picture 2>, but there is none",)
    assert [used["role"] for used in made.facts.conditions_used] == ["first"]
    assert (made.facts.seed, made.facts.frames, made.facts.rows) == (5, 22, made.metadata["effective"]["rows"])
    differ = {"stages_s", "peak_memory_mb", "path"}
    same, other = made.facts.to_dict(), written.to_dict()
    assert {k: v for k, v in same.items() if k not in differ} == {k: v for k, v in other.items() if k not in differ}
    assert written.path == str(tmp_path / "x.mp4")
    assert set(made.stages_s) == set(written.stages_s) == {"prepare", "encode", "denoise", "decode", "mux"}
    assert made.save(tmp_path / "y.mp4").read_bytes() == (tmp_path / "x.mp4").read_bytes()
