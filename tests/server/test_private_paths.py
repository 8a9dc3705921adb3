"""No answer names a folder of the server, whatever is sent to it and whatever happens behind it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from talkies.engine.port.service import Job, JobEvent
from talkies.server.config import ServerConfig
from talkies.server.private import PrivatePaths
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService, mp4_bytes
from tests.server.test_refusals import CASES

MODEL = "/srv/models/MiniMax-H3/FL2VA"
ABSOLUTE = re.compile(r"(?<![\w:/.<-])/(?:[\w.@+-]+/)+[\w.@+-]*")  # two parts or more, and no URL's


class Talkative(FakeService):
    """Fails every job in the words of its prompt, in which {out} is the file to write."""

    def _make(self, job: Job) -> JobEvent:
        words = job.request.prompt.replace("{out}", str(job.outputs[0]))
        error = {"code": "internal_error", "message": words, "param": words, "status": 500}
        return JobEvent(job_id=job.id, kind="failed", error=error)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("root")
    (media / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    (media / "a.mp4").write_bytes(mp4_bytes()[:2000])
    (media / "a folder").mkdir()
    service = Talkative()
    service.info = replace(service.info, model_name=MODEL)
    with serving(tmp_path_factory.mktemp("data"), service, media_root=media) as running:
        yield running


def check(server: Server, answer: Any, sent: str = "") -> None:
    config = server.coordinator.config
    text = answer.text
    for folder in (config.data_dir, config.media_root, Path.cwd(), Path(sys.prefix), MODEL):
        assert str(folder) not in text, text[:500]
    ours = [path for path in ABSOLUTE.findall(text) if not path.startswith("/v1/") and path not in sent]
    assert ours == [], text[:500]


@pytest.mark.parametrize("fields", [c[0] for c in CASES], ids=range(len(CASES)))
def test_no_refusal_of_a_field_names_a_folder(server: Server, fields: dict[str, Any]) -> None:
    answer = server.http.post("/v1/videos", json={"prompt": "a ball", **fields})
    check(server, answer, sent=str(fields))


def test_no_refusal_of_a_file_names_a_folder(server: Server) -> None:
    root = server.coordinator.config.media_root
    assert root is not None
    bodies: list[dict[str, Any]] = [
        {"conditions": [{"type": kind, "uri": uri}]}
        for kind in ("image", "video", "audio", "video_audio")
        for uri in (
            (root / "a.png").as_uri(),
            (root / "a.mp4").as_uri(),
            (root / "absent.png").as_uri(),
            (root / "a folder").as_uri(),
            (root / ".." / "x").as_uri(),
            "file:///etc/passwd",
            "file:///proc/self/environ",
            str(root / "a.png"),
            "data:image/png;base64,AAAA",
            "data:,",
            "http://127.0.0.1:1/x",
            "ftp://x/y",
            "\0",
        )
    ]
    for body in bodies:
        answer = server.http.post("/v1/videos", json={"prompt": "a ball", **body})
        assert answer.status_code == 400, answer.text
        check(server, answer)
    for name, mime in (("x.png", "image/png"), ("x.mp4", "video/mp4"), ("x.wav", "audio/wav")):
        for data in (
            b"",
            b"\0" * 64,
            mp4_bytes()[:2000],
            b"#EXTM3U\n/etc/passwd\n",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF1234WAVE",
        ):
            files = [("input_references", (name, data, mime)), ("input_references", ("y.png", b"GIF89a", "image/png"))]
            answer = server.http.post("/v1/videos", data={"prompt": "a ball", "task": "ref2va"}, files=files)
            assert answer.status_code == 400, answer.text
            check(server, answer)


def test_no_wrong_address_names_a_folder(server: Server) -> None:
    for method, path in (
        ("GET", "/v1/videos/video_gen_x"),
        ("POST", "/v1/videos/video_gen_x/remix"),
        ("POST", "/v1/videos/video_gen_x/cancel"),
        ("GET", "/v1/videos/..%2F..%2Fjobs.sqlite/content"),
        ("GET", "/v1/videos?limit=x"),
        ("GET", "/web/..%2f..%2fconfig.py"),
        ("GET", "/v1/models/x"),
        ("GET", "/v1/models"),
        ("GET", "/models"),
        ("GET", "/health"),
        ("GET", "/metrics"),
        ("PATCH", "/v1/videos"),
        ("POST", "/v1/videos/edits"),
    ):
        check(server, server.http.request(method, path), sent=unquote(path))
    answer = server.http.post("/v1/videos", json={"prompt": "a", "model": "sora-2"})
    check(server, answer)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cannot write {out}: no space", "cannot write 0.mp4: no space"),
        (f"shard {MODEL}/transformer/model-1.safetensors is damaged", "shard model-1.safetensors is damaged"),
        ('File "/usr/lib/python3.13/json/decoder.py", line 3', 'File "decoder.py", line 3'),
        ("in '/mnt/weights/a b/x.bin'", "in 'a b/x.bin'"),
        (f"{sys.prefix}/lib/x.so: undefined symbol", "x.so: undefined symbol"),
        ("see /v1/videos/{id}/content", "see /v1/videos/{id}/content"),
        ("use http://host/a/b.png, 16/9 or image/png", "use http://host/a/b.png, 16/9 or image/png"),
    ],
)
def test_no_failure_of_the_engine_names_a_folder(server: Server, words: str, told: str) -> None:
    job = server.wait(server.create(words)["id"])
    assert (job["error"]["message"], job["error"]["param"]) == (told, told)
    stream = server.http.get(f"/v1/videos/{job['id']}/events")
    del job["prompt"]  # is the client's own
    assert MODEL not in str(job)
    assert str(server.coordinator.config.data_dir) not in stream.text
    content = server.http.get(f"/v1/videos/{job['id']}/content")
    assert content.status_code == 422
    check(server, content)


def test_no_note_of_the_engine_names_a_folder(tmp_path: Path) -> None:
    class Noting(FakeService):
        def _make(self, job: Job) -> JobEvent:
            event = super()._make(job)
            note = f"{job.request.conditions or job.outputs[0]} was scaled"
            assert event.facts is not None
            return replace(event, facts=replace(event.facts, warnings=(note,)))

    with serving(tmp_path, Noting()) as server:
        job = server.wait(server.create("a ball")["id"])
        assert job["warnings"] == ["0.mp4 was scaled"]


def test_a_disk_that_fails_does_not_name_its_files(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: str) -> None:
        path = server.coordinator.config.artifacts / folder
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(server.coordinator.artifacts, "prepare", full)
    answer = server.http.post("/v1/videos", json={"prompt": "a ball"})
    assert answer.status_code == 500
    assert "No space left on device" in answer.json()["error"]["message"]
    check(server, answer)


def test_a_folder_is_found_as_it_is_written_and_where_its_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    hide = PrivatePaths(ServerConfig(data_dir=tmp_path / "link"), "h3-tiny").hide
    assert hide(f"{tmp_path}/real/uploads/x and {tmp_path}/link/y") == "x and y"
    assert hide(f"file:{tmp_path}/link/uploads/x") == "file:x"
