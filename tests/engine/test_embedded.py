"""The checkpoint inside the package, through the public API."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Condition, Target, VideoRequest
from talkies.engine.config import embedded_folder
from talkies.errors import InvalidRequest, MediaError

PROMPT = "a red ball bounces slowly on a dark background with a bell sound"
SHORT = Target(num_frames=22)


def psnr(a, b):
    return 10 * np.log10(255.0**2 / max(np.mean((a.astype(float) - b.astype(float)) ** 2), 1e-9))


def test_all_weights_fit_in_git():
    size = sum(f.stat().st_size for f in embedded_folder().rglob("*") if f.is_file())
    assert size <= 28e6


def test_the_default_clip(embedded_engine):
    clip = embedded_engine.generate(VideoRequest(prompt=PROMPT))
    assert clip.frames.shape == (56, 64, 112, 3)
    assert clip.frames.dtype == np.uint8
    assert clip.audio.shape == (2, 74_667)  # 56 / 24 s, to the nearest sample
    assert clip.audio.dtype == np.float32
    assert (clip.fps, clip.sample_rate_hz) == (24, 32_000)
    assert np.abs(clip.audio).max() > 0.05, "a bell must be heard"


def test_words_decide_what_is_seen(embedded_engine):
    colours = {"red": 0, "green": 1, "blue": 2}
    for word, channel in colours.items():
        request = VideoRequest(prompt=f"a {word} ball slides left slowly on a dark background with a drum sound")
        frames = embedded_engine.generate(request).frames.astype(float)
        object_rgb = frames.reshape(-1, 3)[frames.max(-1).reshape(-1) > 120].mean(0)
        assert object_rgb.argmax() == channel, (word, object_rgb)


def test_one_seed_gives_the_same_bytes(embedded_engine, tmp_path):
    request = VideoRequest(prompt=PROMPT, target=SHORT, seed=3)
    hashes = set()
    for name in ("a.mp4", "b.mp4"):
        embedded_engine.components._memo.clear()
        embedded_engine.render(request, [tmp_path / name])
        hashes.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(hashes) == 1
    embedded_engine.render(request.replace(seed=4), [tmp_path / "c.mp4"])
    assert hashlib.sha256((tmp_path / "c.mp4").read_bytes()).hexdigest() not in hashes


@pytest.mark.parametrize(("name", "words"), [("nowhere/a.mp4", "mkdir"), ("a.mov", "mp4"), (".", "mp4")])
def test_a_file_that_cannot_be_written_costs_no_work(embedded_engine, tmp_path, name, words):
    stages = []
    with pytest.raises(InvalidRequest, match=words):
        embedded_engine.render(VideoRequest(prompt=PROMPT, target=SHORT), [tmp_path / name], on_progress=stages.append)
    assert stages == []
    with pytest.raises(InvalidRequest, match="2 paths"):
        embedded_engine.render(VideoRequest(prompt=PROMPT), [tmp_path / "a.mp4", tmp_path / "b.mp4"])


def test_another_engine_does_not_change_this_ones_threads(embedded_engine):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # as an engine with more threads does
    seen = set()
    request = VideoRequest(prompt=PROMPT, target=SHORT, num_sigmas=2)
    embedded_engine.generate(request, on_progress=lambda progress: seen.add(torch.get_num_threads()))
    assert seen == {embedded_engine.components.config.threads}


@pytest.mark.parametrize("aspect", ["21:9", "4:3", "1:1", "3:4", "9:16"])
def test_every_named_ratio(embedded_engine, aspect):
    sizes = {"21:9": (144, 64), "4:3": (80, 64), "1:1": (64, 64), "3:4": (64, 80), "9:16": (64, 112)}
    clip = embedded_engine.generate(
        VideoRequest(prompt=PROMPT, num_sigmas=3, target=Target(aspect=aspect, num_frames=22))
    )
    assert clip.frames.shape[2:0:-1] == sizes[aspect]


@pytest.mark.parametrize("ends", [("first",), ("last",), ("first", "last")], ids="+".join)
def test_the_clip_meets_its_keyframes(embedded_engine, tmp_path, ends):
    source = embedded_engine.generate(VideoRequest(prompt=PROMPT, target=Target(num_frames=39), seed=8))
    pictures = {"first": source.frames[0], "last": source.frames[-1]}
    conditions = []
    for end in ends:
        Image.fromarray(pictures[end]).save(tmp_path / f"{end}.png")
        conditions.append(Condition(kind="image", uri=str(tmp_path / f"{end}.png"), role=end))
    clip = embedded_engine.generate(
        VideoRequest(prompt=PROMPT, target=Target(num_frames=39), conditions=tuple(conditions), seed=9)
    )
    for end in ends:
        frame = clip.frames[0 if end == "first" else -1]
        assert psnr(frame, pictures[end]) >= 30, end


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"target": Target(seconds=9)}, InvalidRequest, "seconds=9"),
        ({"target": Target(num_frames=300)}, InvalidRequest, "num_frames"),
        ({"target": Target(width=1344, height=768)}, InvalidRequest, "pixels"),
        ({"target": Target(width=100, height=64)}, InvalidRequest, "multiple of 16"),
        ({"conditions": (Condition(kind="image", uri="a.png"),)}, MediaError, "a.png"),
        ({"num_outputs": 2}, InvalidRequest, "num_outputs"),
    ],
)
def test_limits_are_the_checkpoints(embedded_engine, changes, error, words):
    with pytest.raises(error, match=words):
        embedded_engine.generate(VideoRequest(prompt=PROMPT, **changes))
