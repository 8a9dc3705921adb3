"""Saved states: whole or not there, and only for whom they were made."""

import pytest
import torch
from safetensors.torch import save_file

from talkies import Engine
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.resume import ResumeFile, request_hash
from talkies.engine.pipeline.step import denoise_step
from talkies.request import Condition, Target, VideoRequest

REQUEST = VideoRequest(prompt="x", num_sigmas=4, target=Target(num_frames=22))


@pytest.fixture(scope="module")
def state(tiny_folder):
    components = Engine.open(tiny_folder).components
    state = pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, REQUEST)))
    denoise_step(components, state)
    return state


@pytest.fixture
def file(tmp_path):
    return ResumeFile(folder=tmp_path / "job", request=REQUEST, model_hash="m")


def test_what_is_saved_is_loaded(file, state):
    assert file.load() is None
    file.save(state, output=2)
    saved = file.load()
    assert (saved.output, saved.step) == (2, 1)
    assert torch.equal(saved.tensors["video_rows"], state.video_rows)
    assert [p.name for p in file.folder.iterdir()] == [file.path.name]  # nothing is left beside it
    file.drop()
    file.drop()
    assert file.load() is None


def test_another_request_or_model_starts_over(file, state):
    file.save(state, output=0)
    assert ResumeFile(folder=file.folder, request=REQUEST.replace(seed=1), model_hash="m").load() is None
    assert ResumeFile(folder=file.folder, request=REQUEST, model_hash="n").load() is None
    assert file.load() is not None


@pytest.mark.parametrize("keep", [0, 7, 200, -5])
def test_a_broken_file_starts_over(file, state, keep):
    file.save(state, output=0)
    file.path.write_bytes(file.path.read_bytes()[:keep])
    assert file.load() is None


def test_a_save_that_fails_leaves_the_one_before(file, state, monkeypatch):
    file.save(state, output=0)
    monkeypatch.setattr("talkies.engine.pipeline.resume.save_file", _full_disk)
    with pytest.raises(OSError, match="space"):
        file.save(state, output=1)
    assert file.load().output == 0


def test_a_file_that_changed_is_another_request(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"one")
    request = VideoRequest(prompt="x", conditions=(Condition(kind="image", uri=str(picture), role="first"),))
    before = request_hash(request)
    assert request_hash(request) == before
    picture.write_bytes(b"another")
    assert request_hash(request) != before


def _full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(file, state, monkeypatch):
    """What a killed process has written so far is beside the file, never in it."""
    file.save(state, output=0)
    whole, seen = file.path.read_bytes(), []

    def half_written(tensors, path, metadata):
        path.write_bytes(whole[: len(whole) // 2])
        seen.append(file.load())
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr("talkies.engine.pipeline.resume.save_file", half_written)
    file.save(state, output=1)
    assert [saved.output for saved in seen] == [0]
    assert file.load().output == 1
