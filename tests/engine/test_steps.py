"""An engine as programs use it: words in place of a request, each step, each frame, latents out and in."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading

import numpy as np
import pytest
import torch

import talkies
from talkies import Cancelled, Condition, Engine, InvalidRequest, Target, VideoRequest
from talkies.engine.asking import requests_of

WORDS = {"prompt": "x", "num_sigmas": 4, "num_frames": 22}
REQUEST = VideoRequest(prompt="x", num_sigmas=4, target=Target(num_frames=22))
PICTURE = np.zeros((48, 80, 3), np.uint8)


@pytest.fixture(scope="module")
def engine(tiny_folder):
    with Engine.open(tiny_folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def clip(engine):
    return engine.generate(REQUEST)


def test_words_are_the_request_that_they_say():
    assert requests_of(None, WORDS) == [REQUEST]
    assert requests_of(REQUEST, {}) == [REQUEST]
    both = requests_of(REQUEST, {"prompt": ["a", "b"], "seed": range(2), "seconds": 1, "num_frames": None})
    assert [(one.prompt, one.seed) for one in both] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {one.target for one in both} == {Target(seconds=1)}
    (one,) = requests_of(None, {"prompt": "x", "first_frame": PICTURE, "last_frame": "b.png"})
    assert [(c.kind, c.role) for c in one.conditions] == [("image", "first"), ("image", "last")]
    sound = (np.zeros((2, 8000), np.float32), 32_000)
    (one,) = requests_of(None, {"prompt": "x", "references": [PICTURE, sound, "c.mp4", b"\x89PNG\r\n\x1a\n"]})
    assert [c.kind for c in one.conditions] == ["image", "audio", "video", "image"]
    (one,) = requests_of(None, {"prompt": "x", "references": "a.png", "soundtrack": sound})
    assert [(c.kind, c.role) for c in one.conditions] == [("image", "reference"), ("audio", "soundtrack")]
    held = Condition(kind="video", uri="c.mp4", start_time_s=1)
    assert requests_of(None, {"prompt": "x", "references": held})[0].conditions == (held,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "prompt is missing"),
        ({"prompt": []}, "is empty"),
        ({"prompt": "x", "negative_prompt": "y"}, "negative_prompt='y' is no word of a request"),
        ({"prompt": "x", "references": ["thing"]}, "whether it is a picture"),
        ({"prompt": "x", "num_sigmas": 1}, "num_sigmas=1 is outside"),
        ({"prompt": ["x", "y"]}, "these are 2 clips, but generate.. returns one .use generate_all"),
        ({"prompt": "x", "num_outputs": 2}, "num_outputs=2, but generate.. returns one"),
    ],
)
def test_words_that_mean_nothing_are_refused(engine, words, said):
    with pytest.raises(InvalidRequest, match=said):
        engine.generate(**words)


def test_lists_of_prompts_and_seeds_are_clips_in_order(engine, clip):
    clips = engine.generate_all(**{**WORDS, "prompt": ["y", "x"]}, seed=[7, 42])
    assert [(one.request.prompt, one.facts.seed) for one in clips] == [("y", 7), ("y", 42), ("x", 7), ("x", 42)]
    assert np.array_equal(clips[3].frames, clip.frames)


def test_a_step_shows_latents_and_a_preview_and_changes_nothing(engine, clip):
    seen = []

    def on_step(step):
        seen.append((step.step, step.num_steps, step.seed, step.latents(), step.preview()))

    made = engine.generate(REQUEST, on_step=on_step)
    assert [one[:3] for one in seen] == [(1, 3, 42), (2, 3, 42), (3, 3, 42)]
    assert np.array_equal(made.frames, clip.frames)
    assert np.array_equal(made.audio, clip.audio)
    video, audio = seen[-1][3]
    assert video.shape[0] == 1
    assert audio.shape[0] == 2
    assert not torch.equal(seen[0][3][0], video)
    assert all(one[4].shape == clip.frames.shape[1:] and one[4].dtype == np.uint8 for one in seen)

    again = engine.decode((video, audio), REQUEST)
    assert np.array_equal(again.frames, clip.frames)
    assert np.array_equal(again.audio, clip.audio)
    with pytest.raises(InvalidRequest, match=r"video latents of this request are \(1, .*got"):
        engine.decode((video[..., :-1], audio), **WORDS)


def test_a_step_can_be_the_last(engine):
    steps = []

    def on_step(step):
        steps.append(step.step)
        if step.step == 2:
            step.cancel()

    with pytest.raises(Cancelled):
        engine.generate(REQUEST, on_step=on_step)
    assert steps == [1, 2]


def test_frames_come_one_by_one(engine, clip):
    stream = engine.stream(**WORDS)
    first = next(stream)
    assert np.array_equal(stream.audio, clip.audio)
    assert (stream.fps, stream.sample_rate_hz, stream.facts) == (clip.fps, clip.sample_rate_hz, None)
    assert np.array_equal(np.stack([first, *stream]), clip.frames)
    assert stream.facts.frames == 22
    assert next(stream, None) is None
    with engine.stream(**WORDS) as left:
        next(left)
    assert np.array_equal(engine.generate(REQUEST).frames, clip.frames)  # the engine is free again


def test_an_event_loop_goes_on_and_a_cancelled_task_ends_its_request(engine, clip, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def on_step(step):
        begun.set()
        ended.wait(20)

    async def leave():
        task = asyncio.create_task(engine.agenerate(REQUEST, on_step=on_step))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended.set()
        return await engine.agenerate(**WORDS)

    assert np.array_equal(asyncio.run(leave()).frames, clip.frames)


def test_help_of_every_public_name_says_what_it_is():
    """Shapes where there are arrays, units where there are numbers, and a sentence everywhere."""
    for name in talkies.__all__:
        if name == "__version__":
            continue
        thing = getattr(talkies, name)
        own = inspect.getdoc(thing) or ""
        is_error = isinstance(thing, type) and issubclass(thing, talkies.TalkiesError)
        assert is_error or (own and not own.startswith(f"{name}(")), name
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
                text = inspect.getdoc(getattr(thing, member)) or ""
                assert is_error or len(text.split()) > 3, f"{name}.{member}"
    for name, pattern in SHAPES.items():
        owner, _, member = name.partition(".")
        thing = getattr(talkies, owner)
        assert re.search(pattern, inspect.getdoc(getattr(thing, member) if member else thing)), name


SHAPES = {
    "Clip": r"(?s)uint8 \[F, H, W, 3\].*float32 \[2, N\]",
    "Condition": r"seconds",
    "Progress": r"seconds",
    "Step.latents": r"(?s)\[1, C, T, h, w\].*\[2, C, Ta\]",
    "Step.preview": r"uint8 \[H, W, 3\]",
    "Target": r"pixels",
    "VideoRequest": r"N points are N - 1 forwards",
}
