"""What every user of the engine meets, with or without a server: limits over all references, and hints."""

import io
import wave
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from talkies.engine.pipeline.condition_media import MediaAccess
from talkies.engine.pipeline.tasks import TASKS
from talkies.errors import MediaError
from talkies.h3.geometry import Limits
from talkies.media.read.limits import MediaLimits
from talkies.request import Condition, Target, Task, VideoRequest
from tests.media import corpus, films

LIMITS = Limits(
    canvas_short_edge=64,
    canvas_max_pixels=64 * 96,
    min_seconds=0.9,
    reference_image_short_edge=64,
    tasks=("t2va", "fl2va", "ref2va"),
)


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "p.png")
    return str(tmp_path / "p.png")


def sound(path, seconds):
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 8000 * seconds))
    path.write_bytes(data.getvalue())
    return str(path)


def prepare(prompt, conditions, access=None, **changes):
    request = VideoRequest(prompt=prompt, conditions=tuple(conditions), target=Target(num_frames=22), **changes)
    return TASKS[request.resolved_task].prepare(request, LIMITS, access or MediaAccess())


def test_the_total_of_all_sounds_is_limited_without_a_server_too(tmp_path, picture):
    conditions = [Condition(kind="image", uri=picture)]
    conditions += [Condition(kind="audio", uri=sound(tmp_path / f"{i}.wav", 2)) for i in range(2)]
    alive = []
    access = MediaAccess(limits=replace(MediaLimits.loose(), max_total_seconds=3.0), alive=lambda: alive.append(1))
    with pytest.raises(MediaError, match="reference audios may last at most 3 seconds in total, got 4"):
        prepare("<Picture 1> <Audio 1> <Audio 2>", conditions, access)
    assert len(alive) == 3
    assert prepare("<Picture 1> <Audio 1> <Audio 2>", conditions).warnings == ()


def test_hints_reach_the_job_for_every_task(picture):
    assert prepare("a ball", []).warnings == ()
    assert prepare("<Video 1>", []).warnings == ("the prompt mentions <Video 1>, but there is none",)
    first = Condition(kind="image", uri=picture, role="first")
    assert prepare("a ball", [first]).warnings == ()
    assert prepare("from <Picture 1> to <Picture 2>", [first]).warnings == (
        "the prompt mentions <Picture 2>, but there is none",
    )
    reference = Condition(kind="image", uri=picture)
    assert prepare("a ball", [reference], task=Task.REF2VA).warnings == ("the prompt never mentions <Picture 1>",)


def test_what_became_of_each_condition_is_told(tmp_path):
    Image.new("RGB", (200, 100)).save(tmp_path / "wide.png")
    first = Condition(kind="image", uri=str(tmp_path / "wide.png"), role="first")
    last = replace(first, role="last")
    cropped = prepare("it bounces", [first, last], fit="crop").conditions_used
    assert [c["role"] for c in cropped] == ["first", "last"]
    assert (cropped[0]["source_size"], cropped[0]["size"], cropped[0]["fit"]) == ("200x100", cropped[1]["size"], "crop")
    width, height = map(int, cropped[0]["kept"].split("x"))
    assert height == 100
    shown = [int(n) for n in cropped[0]["size"].split("x")]
    assert width / height == pytest.approx(shown[0] / shown[1], rel=0.02)
    assert [c["fit"] for c in prepare("it", [first, last], fit="released").conditions_used] == ["stretch", "crop"]
    assert prepare("it", [first], fit="stretch").conditions_used[0]["kept"] == "200x100"

    references = [
        Condition(kind="image", uri=str(tmp_path / "wide.png")),
        Condition(kind="audio", uri=sound(tmp_path / "long.wav", 3)),
    ]
    image, heard = prepare("<Picture 1> <Audio 1>", references).conditions_used
    assert (image["source_size"], image["size"]) == ("200x100", "128x64")
    assert (heard["source_sample_rate_hz"], heard["sample_rate_hz"]) == (8000, 32_000)
    assert heard["seconds"] == pytest.approx(22 / 24, abs=0.026), "cut to the clip"


def test_what_is_left_unread_or_scaled_is_a_warning(tmp_path):
    (tmp_path / "film.mkv").write_bytes(films.two_tracks("audio", 1))
    (tmp_path / "loud.wav").write_bytes(corpus.float_wav(np.full((2, 32_000), 4.0, np.float32), 32_000))
    request = VideoRequest(
        prompt="<Video 1> with <Audio 1> and <Audio 2>",
        target=Target(num_frames=39),
        conditions=[
            Condition(kind="video", uri=str(tmp_path / "film.mkv")),
            Condition(kind="audio", uri=str(tmp_path / "loud.wav")),
        ],
    )
    warnings = TASKS[Task.REF2VA].prepare(request, LIMITS, MediaAccess()).warnings
    assert warnings[:2] == (
        "reference 1 (video): sound track 2 of 2, the file's default, is read, the rest is left out",
        "reference 2 (audio): the sound peaks at +12.0 dBFS: it is scaled down to full scale",
    )


@pytest.mark.parametrize("task", [Task.T2VA, Task.FL2VA, Task.REF2VA])
@pytest.mark.parametrize(
    ("target", "note"),
    [
        (Target(seconds=1), "seconds=1 became 1.625 (39 frames), the next legal length"),
        (Target(seconds=1.6), "seconds=1.6 became 1.625 (39 frames), the next legal length"),
        (Target(seconds=1.625), None),
        (Target(num_frames=30), "num_frames=30 became 39, the next legal length"),
        (Target(num_frames=39), None),
        (Target(), None),
    ],
)
def test_a_length_that_is_snapped_is_a_warning(picture, task, target, note):
    roles = {Task.T2VA: [], Task.FL2VA: ["first"], Task.REF2VA: ["reference"]}[task]
    conditions = [Condition(kind="image", uri=picture, role=role) for role in roles]
    request = VideoRequest(prompt="<Picture 1>" if roles else "a ball", target=target, conditions=conditions, task=task)
    warnings = TASKS[task].prepare(request, LIMITS, MediaAccess()).warnings
    assert warnings == ((note,) if note else ())
