"""Soundtrack and footage by JSON and form: one condition each, whose errors are told where the client wrote them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from talkies.files.card import Card
from talkies.request import Condition
from tests.server.conftest import Server, serving
from tests.server.fakes import LIMITS, FakeService, mp4_bytes

FILM = mp4_bytes(num_frames=60)
URI = "data:video/mp4;base64," + base64.b64encode(FILM).decode()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


def conditions(server: Server, job: dict[str, Any]) -> list[tuple[str, str, float, float | None]]:
    found: tuple[Condition, ...] = server.service.jobs[job["id"]].request.conditions
    return [(c.kind, c.role, c.start_time_s, c.end_time_s) for c in found]


def post(server: Server, **kwargs: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/videos", **kwargs)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_locks_come_as_json_as_files_and_as_conditions(shared: Server) -> None:
    window = {"footage_start_time_seconds": 0.5, "footage_end_time_seconds": 1.5}
    expected = [("audio", "soundtrack", 0.0, None), ("video", "footage", 0.5, 1.5)]
    job = post(shared, json={"prompt": "a", "soundtrack": {"audio_url": URI}, "footage": URI, **window})
    assert (job["task"], conditions(shared, job)) == ("t2va", expected)
    # 60 frames cover 56, the next legal length below; the canvas is the film's.
    assert (job["num_frames"], job["size"]) == (56, "112x64")
    files = [(role, ("clip.mp4", FILM, "video/mp4")) for role in ("soundtrack", "footage")]
    texts = {"prompt": "a", **{name: str(value) for name, value in window.items()}}
    assert conditions(shared, post(shared, data=texts, files=files)) == expected
    listed = [
        {"type": "audio", "uri": URI, "role": "soundtrack"},
        {"type": "video", "uri": URI, "role": "footage", "start_time_seconds": 0.5, "end_time_seconds": 1.5},
    ]
    assert conditions(shared, post(shared, json={"prompt": "a", "conditions": listed})) == expected


def test_a_soundtrack_goes_with_keyframes_and_references(shared: Server) -> None:
    from tests.server.fakes import jpeg_bytes

    picture = ("input_references", ("a.jpg", jpeg_bytes(), "image/jpeg"))
    film = ("input_references", ("b.mp4", FILM, "video/mp4"))
    sound = ("soundtrack", ("c.mp4", FILM, "video/mp4"))
    job = post(shared, data={"prompt": "a"}, files=[picture, sound])
    assert (job["task"], job["num_frames"]) == ("fl2va", 56)
    assert [c[1] for c in conditions(shared, job)] == ["first", "soundtrack"]
    job = post(shared, data={"prompt": "a", "start_time_seconds": "0.25"}, files=[film, sound])
    assert job["task"] == "ref2va"
    assert conditions(shared, job) == [("video", "reference", 0.25, None), ("audio", "soundtrack", 0.0, None)]
    # Hints speak of references: the lock has no label.
    assert [w for w in job["warnings"] if "never mentions" in w] == ["the prompt never mentions <Video 1>"]


def test_vllms_lock_source_is_a_soundtrack(shared: Server) -> None:
    for place in ({"audio_mode": "lock_source"}, {"extra_params": {"audio_mode": "lock_source"}}):
        job = post(shared, json={"prompt": "a", "audio_reference": {"audio_url": URI}, **place})
        assert (job["task"], conditions(shared, job)) == ("t2va", [("audio", "soundtrack", 0.0, None)])
    assert conditions(shared, post(shared, json={"prompt": "a", "audio_mode": "native"})) == []


LISTED = {"type": "video", "uri": URI, "role": "footage"}
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"footage": URI, "footage_end_time_seconds": 9}, "footage_end_time_seconds", "outside the clip of 2.333 s"),
    ({"footage": URI, "footage_start_time_seconds": 2.4}, "footage_start_time_seconds", "outside the clip of 2.333 s"),
    ({"footage": URI, "footage_start_time_seconds": -1}, "footage_start_time_seconds", "outside [0, inf]"),
    (
        {"soundtrack": URI, "soundtrack_start_time_seconds": 2, "soundtrack_end_time_seconds": 1},
        "soundtrack_end_time_seconds",
        "not after",
    ),
    ({"soundtrack_end_time_seconds": 1}, "soundtrack_end_time_seconds", "a time in the soundtrack, and there is none"),
    ({"soundtrack": URI, "seconds": 4}, "soundtrack", "at most 56 frames (2.333 seconds)"),
    ({"footage": URI, "num_frames": 73}, "footage", "the footage has 2.50 s, the clip 3.042 s"),
    ({"soundtrack": URI, "footage": URI}, "soundtrack", "nothing is left to make"),
    ({"footage": {"audio_url": URI}}, "footage.audio_url", "video_url"),
    ({"footage": [URI, URI]}, "footage", "takes one file, got 2"),
    ({"footage": "data:text/plain,x"}, "footage", "footage"),
    ({"soundtrack": URI, "conditions": [LISTED]}, "soundtrack", "exclude each other"),
    ({"conditions": [{**LISTED, "type": "audio"}]}, "conditions[0].role", "kind 'video'"),
    ({"conditions": [{**LISTED, "frame_index": 0}]}, "conditions[0].frame_index", "a footage has no frame_index"),
    ({"conditions": [{**LISTED, "end_time_seconds": 9}]}, "conditions[0].end_time_seconds", "outside the clip"),
    (
        {"conditions": [{**LISTED, "role": "reference", "end_time_seconds": 1}]},
        "conditions[0].end_time_seconds",
        "has no meaning",
    ),
    ({"audio_mode": "lock_source"}, "audio_mode", "needs one sound"),
    ({"audio_mode": "dub"}, "audio_mode", "native or lock_source"),
]


@pytest.mark.parametrize(("fields", "param", "says"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_wrong_locks_are_refused_where_they_were_written(
    shared: Server, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = shared.http.post("/v1/videos", json={"prompt": "a", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


def test_a_remix_needs_its_lock_again(shared: Server) -> None:
    job = post(shared, json={"prompt": "a", "soundtrack": URI})
    shared.wait(job["id"])
    answer = shared.http.post(f"/v1/videos/{job['id']}/remix", json={"prompt": "b"})
    assert answer.status_code == 400
    assert "send them again" in answer.json()["error"]["message"]
    again = post_remix(shared, job["id"], {"prompt": "b", "soundtrack": URI})
    assert conditions(shared, again) == [("audio", "soundtrack", 0.0, None)]


def post_remix(server: Server, job_id: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.http.post(f"/v1/videos/{job_id}/remix", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_words_that_the_card_lacks_are_a_warning_from_the_first_answer_on(tmp_path: Path) -> None:
    card = Card(knows="a ball", words=frozenset({"a", "ball"}), locks=frozenset({"soundtrack"}))
    service = FakeService()
    service.info = replace(service.info, limits=replace(LIMITS, card=card))
    with serving(tmp_path, service=service) as server:
        job = server.create("a cat, a ball")
        assert job["warnings"] == ["the checkpoint knows a ball; it did not understand: cat"]
        limits = server.http.get("/v1/models").json()["data"][0]["limits"]
        assert (limits["knows"], limits["locks"]) == ("a ball", {"soundtrack": "trained", "footage": "training-free"})
