"""What a clip's file tells of its references: name and content, and no folder, key or upload."""

from __future__ import annotations

import base64
import hashlib
import json
from types import SimpleNamespace

import pytest

from talkies.engine.pipeline.metadata import clip_metadata
from talkies.engine.port.facts import Facts
from talkies.h3.geometry import Limits
from talkies.h3.release_schedule import ReleaseSchedule
from talkies.request import Condition, VideoRequest

DATA = bytes(range(200))
SHA = hashlib.sha256(DATA).hexdigest()


def metadata_of(*conditions, model="h3-tiny", **fields):
    request = VideoRequest(prompt="a ball", conditions=conditions, **fields)
    geometry = SimpleNamespace(width=112, height=64, num_frames=22, size="112x64", fps=24, duration_s=22 / 24)
    state = SimpleNamespace(
        request=request,
        geometry=geometry,
        seed=5,
        schedule=SimpleNamespace(num_sigmas=20),
        task=request.resolved_task,
        num_forwards=19,
        num_rows=100,
    )
    components = SimpleNamespace(
        schedule=ReleaseSchedule(video_shift=12.0, audio_shift=3.0),
        config=SimpleNamespace(model_name=model),
        checkpoint_hash="0" * 12,
        limits=Limits(),
    )
    facts = Facts.of(request, geometry, num_forwards=19)
    return clip_metadata(components, state, facts)


def entry(**changes):
    return {"kind": "image", "role": "reference", "name": "", "sha256": None, **changes}


def test_a_file_is_held_by_name_and_content(tmp_path):
    path = tmp_path / "a private folder" / "me.png"
    path.parent.mkdir()
    path.write_bytes(DATA)
    for uri in (str(path), path.as_uri()):
        found = metadata_of(Condition(kind="image", uri=uri, role="first"))
        assert found["inputs"] == [entry(role="first", name="me.png", sha256=SHA)]
        assert [c["uri"] for c in found["request"]["conditions"]] == ["me.png"]
        assert str(tmp_path) not in json.dumps(found)
        VideoRequest.from_dict(found["request"])


def test_an_upload_is_held_by_the_name_that_its_owner_gave_it(tmp_path):
    path = tmp_path / "0123456789abcdef"  # as a server stores it
    path.write_bytes(DATA)
    found = metadata_of(Condition(kind="image", uri=str(path), name="holiday.jpg"))
    assert found["inputs"] == [entry(name="holiday.jpg", sha256=SHA)]
    assert found["request"]["conditions"][0]["uri"] == "holiday.jpg"
    assert path.name not in json.dumps(found)


@pytest.mark.parametrize(
    ("uri", "kept", "name", "sha256"),
    [
        ("https://host/a/b.png", "https://host/a/b.png", "b.png", None),
        ("https://host/a/b.png?signature=secret", "omitted:b.png", "b.png", None),
        ("https://user:secret@host/b.png", "omitted:b.png", "b.png", None),
        ("data:image/png;base64," + base64.b64encode(DATA).decode(), "omitted:data", "", SHA),
    ],
)
def test_of_an_address_no_key_and_no_content_is_held(uri, kept, name, sha256):
    found = metadata_of(Condition(kind="image", uri=uri))
    assert found["request"]["conditions"][0]["uri"] == kept
    assert found["inputs"] == [entry(name=name, sha256=sha256)]
    assert "secret" not in json.dumps(found)


def test_a_model_is_held_by_the_name_of_its_folder():
    for model, name in (
        ("h3-tiny", "h3-tiny"),
        ("MiniMaxAI/MiniMax-H3", "MiniMaxAI/MiniMax-H3"),
        ("/home/somebody/models/h3", "h3"),
        ("~/models/MiniMax-H3/FL2VA", "MiniMax-H3"),
    ):
        assert metadata_of(model=model)["model"]["name"] == name


def test_references_can_be_left_out(tmp_path):
    path = tmp_path / "me.png"
    path.write_bytes(DATA)
    found = metadata_of(Condition(kind="image", uri=str(path)), record_inputs=False)
    assert "inputs" not in found
    text = json.dumps(found)
    assert "me.png" not in text
    assert SHA[:16] not in text
    assert found["request"]["conditions"][0]["uri"].startswith("omitted:")


def test_a_clip_of_words_alone_says_nothing_of_references():
    found = metadata_of()
    assert "inputs" not in found
    assert "record_inputs" not in found["request"]
    assert found["request"]["conditions"] == []
