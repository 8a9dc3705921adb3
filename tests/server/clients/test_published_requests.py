"""Every published request is sent: it becomes a clip, or is refused for a reason of the model. docs/compatibility.md
shows what became of each; ``TALKIES_WRITE_DOCS=1`` writes the table anew."""

from __future__ import annotations

import json
import os
import wave
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talkies.h3.geometry import Limits
from tests.server.clients.published_requests import Published, published
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- requests: begin -->\n", "<!-- requests: end -->\n"


def write_media(folder: Path) -> None:
    """One of each kind, as the limits of the released model want them."""
    from PIL import Image

    from talkies.media.write.mp4 import Mp4Writer

    for name, colour in (("first.png", "green"), ("last.png", "navy"), ("reference.jpg", "olive")):
        Image.new("RGB", (512, 288), colour).save(folder / name)
    for name, seconds in (("a.mp4", 3), ("b.mov", 4), ("long.mp4", 41)):
        with Mp4Writer(folder / name, width=320, height=256, preset="ultrafast") as writer:
            writer.write_wave(np.zeros((2, 32_000 * seconds), np.float32))
            for _ in range(seconds):
                writer.write_frames(np.full((24, 256, 320, 3), 90, np.uint8))
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\0\1" * 48_000)
    (folder / "mask.json").write_text("0.5")


@dataclass(frozen=True)
class World:
    server: Server
    media: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    media = tmp_path_factory.mktemp("media")
    write_media(media)
    service = FakeService()
    limits = Limits(tasks=("t2va", "fl2va", "ref2va"))
    service.info = replace(service.info, model_name="MiniMaxAI/MiniMax-H3", limits=limits)
    patch = pytest.MonkeyPatch()
    import talkies.media.fetch.uri as uri

    real = uri.fetch
    hosts = ("https://cdn.example.com/", "https://example.com/", "http://127.0.0.1:8092/")

    def fetch(address: str, *args: Any, **kwargs: Any) -> bytes:
        """No test reaches the internet: what the documents' hosts would send lies in a folder."""
        if not address.startswith(hosts):
            return real(address, *args, **kwargs)
        return (media / {"image": "first.png", "video": "a.mp4", "audio": "a.wav"}[kwargs["kind"]]).read_bytes()

    patch.setattr(uri, "fetch", fetch)
    with serving(tmp_path_factory.mktemp("data"), service, media_root=media) as server:
        yield World(server, media)
    patch.undo()


def send(world: World, request: Published) -> Any:
    if request.body is not None:
        return world.server.http.post(request.path, json=request.body)
    parts = [(name, (file, (world.media / file).read_bytes(), kind)) for name, file, kind in request.files]
    fields = [(name, (None, str(value))) for name, value in request.form.items()]
    return world.server.http.post(request.path, files=[*fields, *parts])


def row(request: Published, answer: Any) -> str:
    if answer.status_code == 200:
        is_file = answer.headers["content-type"] == "video/mp4"
        facts = json.loads(answer.headers["x-video-facts"]) if is_file else answer.json()
        became = "{task}, {size}, {num_frames} frames, {num_forwards} forwards".format(**facts)
        count = facts.get("num_outputs", 1)
        became += f", {count} outputs" if count > 1 else ""
    else:
        error = answer.json()["error"]
        became = f"{answer.status_code} `{error['param']}`: {error['message']}"
    needs = f"; needs {request.needs}" if request.needs else ""
    return f"| {request.where} | {request.what} | {became}{needs} |".replace("\n", " ")


def test_every_published_request_becomes_a_clip_or_is_refused_for_a_reason_of_the_model(world: World) -> None:
    requests = published(world.media)
    assert len(requests) > 60
    assert len({(r.where, r.what) for r in requests}) == len(requests)
    rows, wrong = [], []
    for request in requests:
        answer = send(world, request)
        wanted = (200, None) if request.refused is None else (400, request.refused)
        got = (answer.status_code, None if answer.status_code == 200 else answer.json()["error"]["param"])
        if got != wanted:
            wrong.append((request.where, request.what, wanted, got, answer.text[:300]))
        rows.append(row(request, answer))
    assert not wrong, "\n".join(map(str, wrong))
    counts = Counter(request.refused is None for request in requests)
    head = f"{len(rows)} requests: {counts[True]} become clips, {counts[False]} are refused.\n\n"
    table = head + "| document | request | what becomes of it |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the page lost its marks"
    assert end, "the page lost its marks"
    if os.environ.get("TALKIES_WRITE_DOCS"):
        PAGE.write_text(before + BEGIN + table + END + after, "utf-8")
    assert rest.partition(END)[0] == table or os.environ.get("TALKIES_WRITE_DOCS"), "run with TALKIES_WRITE_DOCS=1"


def test_a_published_request_is_the_clip_it_asks_for(world: World) -> None:
    """What the table says is read from answers; a few of them by heart, so that it is not only consistent."""
    wanted = {
        "T2VA": ("t2va", "1344x768", 209, 49),
        "FL2VA, first frame": ("fl2va", "1344x768", 209, 49),
        "Ref2VA, two videos": ("ref2va", "1344x768", 362, 49),
        "T2VA, 480p": ("t2va", "864x480", 124, 49),
        "V2V from second 35": ("ref2va", "1344x768", 124, 49),
        "seconds=12": ("t2va", "1344x768", 294, 49),
    }
    for request in published(world.media):
        if request.what in wanted and (request.what, request.where[-5:]) != ("T2VA", "00.md"):
            answer = send(world, request)
            is_file = answer.headers["content-type"] == "video/mp4"
            facts = json.loads(answer.headers["x-video-facts"]) if is_file else answer.json()
            got = (facts["task"], facts["size"], facts["num_frames"], facts["num_forwards"])
            frames = 124 if request.where.startswith("SGLang") else wanted[request.what][2]
            assert got == (*wanted[request.what][:2], frames, wanted[request.what][3]), request
