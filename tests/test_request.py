"""A VideoRequest is valid once built; every refusal names field, value, limit and way out."""

import dataclasses
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talkies.errors import InvalidRequest, UnsupportedTask
from talkies.h3.clip_plan import plan
from talkies.h3.geometry import Limits
from talkies.request import Condition, Target, Task, VideoRequest
from talkies.values import parse_ratio, parse_size

LIMITS = Limits(tasks=("t2va", "fl2va", "ref2va"))
IMAGE = Condition(kind="image", uri="a.png")
FIRST = Condition(kind="image", uri="a.png", role="first")
LAST = Condition(kind="image", uri="b.png", role="last")
SOUND = Condition(kind="audio", uri="a.wav")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": " \n\t"}, "prompt"),
        ({"prompt": "\0"}, "prompt"),
        ({"prompt": "\u200b \ufeff\u202e"}, "prompt"),  # zero-width, and not what str.strip takes for blank
        ({"prompt": 3}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": 2**63 - 1, "num_outputs": 2}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"num_sigmas": 1}, "num_sigmas"),
        ({"num_sigmas": 201}, "num_sigmas"),
        ({"num_outputs": 0}, "num_outputs"),
        ({"num_outputs": 11}, "num_outputs"),
        ({"sigmas": (1.0, 0.5, 0.5, 0.0)}, "sigmas"),
        ({"sigmas": (1.0, 0.5)}, "sigmas"),
        ({"sigmas": (1.5, 0.0)}, "sigmas"),
        ({"sigmas": (1.0, 0.99999999999, 0.0)}, "sigmas"),  # equal in float32
        ({"sigmas": (1.0, 1e-46, 0.0)}, "sigmas"),
        ({"sigmas": (1e300, 0.0)}, "sigmas"),
        ({"video_shift": 0.0}, "video_shift"),
        ({"video_shift": 1e-8}, "video_shift"),  # its first sigma would be infinite
        ({"audio_shift": float("nan")}, "audio_shift"),
        ({"fit": "squash"}, "fit"),
        ({"quality": "ultra"}, "quality"),
        ({"task": "t2v"}, "task"),
        ({"task": "t2va", "conditions": (FIRST,)}, "task"),
        ({"task": "fl2va", "conditions": (IMAGE,)}, "conditions"),
        ({"conditions": (FIRST, FIRST)}, "conditions"),
        ({"conditions": (FIRST, IMAGE)}, "conditions"),
        ({"conditions": (SOUND,)}, "conditions"),
        ({"conditions": (IMAGE,) * 10}, "conditions"),
        ({"conditions": (IMAGE, SOUND, SOUND, SOUND, SOUND)}, "conditions"),
        ({"conditions": None}, "conditions"),
        ({"conditions": "a.png"}, "conditions"),
        ({"conditions": ["a.png"]}, "conditions"),
        ({"conditions": [{"kind": "image", "uri": "a.png"}]}, "conditions"),
        ({"target": {"seconds": 5}}, "target"),
        ({"target": None}, "target"),
        ({"audio": "no"}, "audio"),
        ({"audio": None}, "audio"),
    ],
)
def test_refusals_name_the_field(changes, param):
    with pytest.raises(InvalidRequest) as caught:
        VideoRequest(**{"prompt": "a red ball bounces", **changes})
    assert caught.value.param == param
    assert caught.value.hint


@pytest.mark.parametrize("prompt", ["\u200ba ball", "球", "\U0001f534", "\u200fכדור", "?"])
def test_anything_that_can_be_seen_is_a_prompt(prompt):
    assert VideoRequest(prompt=prompt).prompt == prompt


@pytest.mark.parametrize("seconds", [0, -1.0, 1e9, float("nan"), "4"])
def test_a_number_outside_is_told_the_way_out(seconds):
    with pytest.raises(InvalidRequest, match=r"\(0, 86400\]") as caught:
        Target(seconds=seconds)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"uri": object()}, "is not text but object"),
        ({"uri": b""}, "is empty"),
        ({"uri": " "}, "is empty"),
        ({"start_time_s": 1.0}, "start_time_s has no meaning for kind='image'"),
        ({"kind": "audio", "start_time_s": 1.0}, "videos only"),
        ({"require_sound": True}, "require_sound has no meaning"),
        ({"kind": "video", "require_sound": "no"}, "must be a bool"),
    ],
)
def test_a_condition_refuses_what_it_could_only_drop(changes, words):
    with pytest.raises(InvalidRequest, match=words):
        Condition(**{"kind": "image", "uri": "a.png", **changes})


def test_a_condition_takes_a_path():
    assert Condition(kind="image", uri=Path("shots") / "a.png") == Condition(kind="image", uri="shots/a.png")


@pytest.mark.parametrize("seed", [-(2**63), 0, 2**63 - 1])
def test_all_of_int64_is_a_seed(seed):
    assert VideoRequest(prompt="x", seed=seed).seed == seed


@pytest.mark.parametrize(
    ("task", "conditions", "expected"),
    [
        (None, (), Task.T2VA),
        (None, (FIRST,), Task.FL2VA),
        (None, (LAST,), Task.FL2VA),
        (None, (FIRST, LAST), Task.FL2VA),
        (None, (IMAGE, SOUND), Task.REF2VA),
        ("fl2va", (), Task.T2VA),
        ("ref2va", (IMAGE,), Task.REF2VA),
    ],
)
def test_task_is_inferred(task, conditions, expected):
    assert VideoRequest(prompt="x", task=task, conditions=conditions).resolved_task is expected


def test_requests_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        VideoRequest(prompt="x").seed = 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"width": 64}, "height is missing"),
        ({"seconds": 5, "num_frames": 124}, "both given"),
        ({"seconds": float("inf")}, "finite"),
        ({"seconds": 0}, "outside"),
        ({"num_frames": 0}, "outside"),
        ({"aspect": "wide"}, "not a ratio"),
        ({"aspect": "0:9"}, "not a ratio"),
    ],
)
def test_target_refusals(target, message):
    with pytest.raises(InvalidRequest, match=message):
        Target(**target)


@pytest.mark.parametrize("text", ["", "112", "112x", "x64", "-1x64", "1e3x64", "112x64x3", "9999999999x1"])
def test_size_text_is_checked(text):
    with pytest.raises(InvalidRequest, match="WIDTHxHEIGHT"):
        parse_size(text)


def test_size_and_ratio_parse():
    assert parse_size("1344x768") == (1344, 768)
    assert parse_ratio("16:9") == 16 / 9
    assert parse_ratio("1.5") == 1.5


@pytest.mark.parametrize(
    ("target", "size", "frames"),
    [
        ({}, "1344x768", 209),
        ({"aspect": "9:16", "seconds": 5}, "768x1344", 124),
        ({"aspect": "auto"}, "1344x768", 209),
        ({"width": 1248, "height": 768, "seconds": 8.7}, "1248x768", 209),
        ({"num_frames": 125}, "1344x768", 141),
    ],
)
def test_plan(target, size, frames):
    g = plan(VideoRequest(prompt="x", target=Target(**target)), LIMITS)
    assert (g.size, g.num_frames) == (size, frames)


def test_plan_takes_the_canvas_from_the_first_keyframe_unless_told():
    request = VideoRequest(prompt="x", conditions=(FIRST,))
    assert plan(request, LIMITS, auto_aspect=1.0).size == "768x768"
    told = request.replace(target=Target(aspect="16:9"))
    assert plan(told, LIMITS, auto_aspect=1.0).size == "1344x768"


@pytest.mark.parametrize("seconds", [3.9, 15.1, 0.1])
def test_plan_refuses_durations_outside(seconds):
    with pytest.raises(InvalidRequest, match=r"outside 4\.\.15"):
        plan(VideoRequest(prompt="x", target=Target(seconds=seconds)), LIMITS)


def test_plan_refuses_a_task_that_is_not_loaded():
    with pytest.raises(UnsupportedTask, match="ref2va") as caught:
        plan(VideoRequest(prompt="x", conditions=(IMAGE,)), Limits())
    assert caught.value.param == "task"


def test_plan_refuses_a_long_prompt():
    with pytest.raises(InvalidRequest, match="7000"):
        plan(VideoRequest(prompt="x" * 7001), LIMITS)


def test_errors_survive_pickling():
    with pytest.raises(InvalidRequest) as caught:
        VideoRequest(prompt="")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.param, again.hint, str(again)) == (caught.value.param, caught.value.hint, str(caught.value))


@given(
    st.text(alphabet=st.characters(exclude_categories=("Cs",))).map(lambda text: f"{text}a"),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([(), (FIRST,), (FIRST, LAST), (IMAGE, SOUND)]),
    st.sampled_from([None, 2, 20, 200]),
)
def test_json_round_trip(prompt, seed, conditions, num_sigmas):
    request = VideoRequest(prompt=prompt, seed=seed, conditions=conditions, num_sigmas=num_sigmas)
    assert VideoRequest.from_dict(request.to_dict()) == request


def test_unknown_fields_are_refused():
    with pytest.raises(InvalidRequest, match="'sede'"):
        VideoRequest.from_dict({"prompt": "x", "sede": 3})


OWN_SOUND = Condition(kind="audio", uri="a.wav", role="soundtrack")
FILM = Condition(kind="video", uri="a.mp4", role="footage")
FRAME = Condition(kind="image", uri="a.png", role="first")
PICTURE = Condition(kind="image", uri="b.png")


@pytest.mark.parametrize(
    ("conditions", "task"),
    [
        ((OWN_SOUND,), Task.T2VA),
        ((FILM,), Task.T2VA),
        ((FRAME, OWN_SOUND), Task.FL2VA),
        ((OWN_SOUND, PICTURE), Task.REF2VA),
        ((PICTURE, FILM), Task.REF2VA),
        ((dataclasses.replace(OWN_SOUND, end_time_s=1.0), FILM), Task.T2VA),
    ],
)
def test_locks_go_with_any_task(conditions, task):
    request = VideoRequest(prompt="x", conditions=conditions)
    assert request.resolved_task is task
    assert VideoRequest.from_dict(request.to_dict()) == request
    assert VideoRequest(prompt="x", conditions=conditions, task=task) == request.replace(task=task)


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ((OWN_SOUND, OWN_SOUND), "one soundtrack, got 2"),
        ((FILM, FRAME), "footage and a first frame both say"),
        ((FILM, OWN_SOUND), "nothing is left to make"),
        ((OWN_SOUND, Condition(kind="audio", uri="b.wav")), "at least one image or video reference"),
    ],
)
def test_locks_that_leave_nothing_or_contradict_are_refused(conditions, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        VideoRequest(prompt="x", conditions=conditions)
    assert refused.value.param == "conditions"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"kind": "video", "role": "soundtrack"}, "conditions.role"),
        ({"kind": "image", "role": "footage"}, "conditions.role"),
        ({"kind": "video", "role": "reference", "end_time_s": 1.0}, "end_time_s"),
        ({"kind": "video", "role": "footage", "start_time_s": 2.0, "end_time_s": 2.0}, "end_time_s"),
        ({"kind": "video", "role": "footage", "end_time_s": 0.0}, "end_time_s"),
        ({"kind": "video", "role": "footage", "end_time_s": "1"}, "end_time_s"),
        ({"kind": "video", "role": "footage", "require_sound": True}, "require_sound"),
    ],
)
def test_a_lock_of_the_wrong_kind_or_time_is_refused(changes, param):
    with pytest.raises(InvalidRequest) as refused:
        Condition(uri="a", **changes)
    assert refused.value.param == param


def test_conditions_without_a_window_are_written_as_before():
    """The bytes of their clips' metadata do not change."""
    (written,) = VideoRequest(prompt="x", conditions=(FRAME,)).to_dict()["conditions"]
    assert set(written) == {"kind", "uri", "role", "start_time_s", "require_sound", "name"}
