"""What is wrong with a reference is a 400 at the POST, at the field that brought it, before anything costly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService, mp4_bytes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


def test_many_large_pictures_are_refused_before_one_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine pictures of one colour: 60 kB each, and 3 s of decoding each."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("1", (5760, 5760)).save(out, "PNG")
    decoded: list[Any] = []
    monkeypatch.setattr("talkies.media.read.image.read_image", lambda *args, **_: decoded.append(args))
    with serving(tmp_path) as server:
        files = [("input_references", (f"{i}.png", out.getvalue(), "image/png")) for i in range(9)]
        answer = server.http.post("/v1/videos", data={"prompt": "a ball", "task": "ref2va"}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "input_references")
        assert (
            "image 4: the pictures of a request may have 120000000 pixels in all" in answer.json()["error"]["message"]
        )
        assert list((tmp_path / "uploads").iterdir()) == []
    assert decoded == []


def test_where_a_video_starts_is_refused_where_it_was_written(shared: Server) -> None:
    import base64

    uri = "data:video/mp4;base64," + base64.b64encode(mp4_bytes()).decode()
    condition = {"type": "video", "uri": uri, "start_time_seconds": 5}
    for fields, param in (
        ({"conditions": [condition]}, "conditions[0].start_time_seconds"),
        ({"video_reference": {"video_url": uri}, "start_time_seconds": 5}, "start_time_seconds"),
        (
            {"video_reference": {"video_url": uri}, "extra_params": {"start_time_seconds": [5]}},
            "extra_params.start_time_seconds",
        ),
    ):
        answer = shared.http.post("/v1/videos", json={"prompt": "a ball", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
        assert "start_time_seconds=5 is outside the source duration" in answer.json()["error"]["message"]


def test_content_of_another_kind_is_named(shared: Server, png: Path) -> None:
    files = [("input_references", ("clip.mp4", png.read_bytes(), "video/mp4"))]
    answer = shared.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "input_references", "invalid_media")
    assert "video 1 is not a video: it is a PNG picture" in error["message"]


def test_a_picture_too_wide_for_any_canvas_is_the_pictures_fault(shared: Server, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (80, 20), "red").save(tmp_path / "wide.png")  # exactly the ratio that is allowed
    Image.new("RGB", (20, 81), "red").save(tmp_path / "tall.png")
    for name, status in (("wide.png", 200), ("tall.png", 400)):
        files = [("input_reference", (name, (tmp_path / name).read_bytes(), "image/png"))]
        answer = shared.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == "input_reference"


def test_a_task_that_nobody_wrote_is_refused_where_its_reference_was(tmp_path: Path) -> None:
    service = FakeService()
    service.info = replace(service.info, limits=replace(service.info.limits, tasks=("t2va", "fl2va")))
    with serving(tmp_path, service) as server:
        files = [("input_references", ("a.mp4", mp4_bytes(), "video/mp4"))]
        answer = server.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_references")
        assert answer.json()["error"]["code"] == "unsupported_task"
