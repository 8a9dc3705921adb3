"""``--from CLIP``: its references are found beside it, by name and content."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from talkies.cli.clips.repeat import repeated
from talkies.errors import InvalidRequest
from talkies.media.inspect.report import inspect
from talkies.media.write.mp4 import write_mp4
from talkies.request import Condition, VideoRequest
from tests.cli.test_cli import talkies

DATA = bytes(range(200))


def clip(folder, *, uri="first.png", name="first.png", data=DATA, inputs=True, role="first"):
    """A clip that says it was made from ``name`` of content ``data``."""
    request = VideoRequest(prompt="a ball", conditions=(Condition(kind="image", uri=uri, role=role),)).to_dict()
    entry = {"kind": "image", "role": role, "name": name, "sha256": hashlib.sha256(data).hexdigest()}
    metadata = {"request": request, **({"inputs": [entry]} if inputs else {})}
    write_mp4(folder / "clip.mp4", np.zeros((22, 64, 64, 3), np.uint8), None, metadata=metadata)
    return folder / "clip.mp4"


def test_a_reference_is_found_beside_the_clip(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "clips", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (folder / "first.png").write_bytes(DATA)
    assert repeated(clip(folder)).conditions[0].uri == str(folder / "first.png")
    (folder / "first.png").rename(elsewhere / "first.png")
    assert repeated(folder / "clip.mp4").conditions[0].uri == "first.png"  # or in the current folder
    (folder / "first.png").write_bytes(b"another picture of that name")
    assert repeated(folder / "clip.mp4").conditions[0].uri == "first.png"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"name": "absent.png"}, "absent.png, which .*clip.mp4 was made from, is not beside it"),
        ({"data": b"other"}, "is not the file that .* was made from: its content differs"),
        ({"uri": "omitted:on request", "inputs": False}, "made from references that the file does not hold"),
        ({"uri": "omitted:data", "name": ""}, "made from references that the file does not hold"),
        ({"name": "../secret.png"}, "secret.png, which .* is not beside it"),
    ],
)
def test_what_is_not_there_or_another_is_refused(tmp_path, monkeypatch, made, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.png").write_bytes(DATA)
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "first.png").write_bytes(DATA)
    if made.get("name") == "../secret.png":
        monkeypatch.chdir(folder)
    path = clip(folder, **made)
    with pytest.raises(InvalidRequest, match=words) as caught:
        repeated(path)
    assert "--first-frame" in caught.value.hint
    assert repeated(path, with_references=False).conditions == ()  # they are given anew


def test_an_address_is_fetched_again(tmp_path):
    uri = "https://host/first.png"
    assert repeated(clip(tmp_path, uri=uri)).conditions[0].uri == uri


def test_a_clip_of_an_earlier_version_is_repeated_from_the_path_it_holds(tmp_path):
    (tmp_path / "first.png").write_bytes(DATA)
    path = clip(tmp_path, uri=str(tmp_path / "first.png"), inputs=False)
    assert repeated(path).conditions[0].uri == str(tmp_path / "first.png")


@pytest.mark.slow
def test_a_clip_is_repeated_where_its_reference_lies_beside_it(tiny_folder, tmp_path):
    from PIL import Image

    pictures, clips = tmp_path / "private pictures", tmp_path / "clips"
    pictures.mkdir()
    clips.mkdir()
    Image.effect_noise((80, 60), 90).convert("RGB").save(pictures / "first.png")
    options = ("--model", tiny_folder, "--frames", 22, "--steps", 2, "--first-frame", pictures / "first.png")
    done = talkies("generate", "a ball", *options, "-o", clips / "a.mp4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.dumps(inspect(clips / "a.mp4").to_dict()["request"])
    assert "private pictures" not in said
    assert '"name": "first.png"' in said
    again = ("generate", "--from", clips / "a.mp4", "-o", clips / "b.mp4", "--model", tiny_folder)
    done = talkies(*again, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "first.png, which" in done.stderr
    (clips / "first.png").write_bytes((pictures / "first.png").read_bytes())
    done = talkies(*again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (clips / "a.mp4").read_bytes() == (clips / "b.mp4").read_bytes()
    assert talkies("generate", "a ball", *options, "--no-record-inputs", "-o", "c.mp4", cwd=tmp_path).returncode == 0
    assert "first.png" not in json.dumps(inspect(tmp_path / "c.mp4").to_dict()["request"])
