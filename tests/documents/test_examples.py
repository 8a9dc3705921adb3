"""Each example is run as it is, with a server where it wants one; it is skipped where a package is missing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import runpy
import shutil
import subprocess
import threading
import time
from pathlib import Path

import av
import httpx
import numpy as np
import pytest

from talkies import Engine
from talkies.media.inspect.report import inspect
from tests.documents.blocks import ROOT

EXAMPLES = ROOT / "examples"
SLOW = pytest.mark.slow


def example(name):
    return runpy.run_path(str(EXAMPLES / name))


def frames(path):
    """int16 [F, H, W, 3]."""
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]).astype(np.int16)


@pytest.fixture
def one_engine(monkeypatch, embedded_engine):
    opened = []
    monkeypatch.setattr(Engine, "open", lambda *_, **__: opened.append(1) or embedded_engine)
    return opened


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.server.test_real_engine import running

    flags = ("--webhook-secret", "whsec_" + base64.b64encode(bytes(32)).decode(), "--allow-host", "127.0.0.1")
    with running(Path("h3-tiny"), tmp_path_factory.mktemp("data"), *flags) as (client, _):
        yield str(client.base_url).rstrip("/")


def test_every_example_is_in_the_list_and_in_a_test():
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert files == listed
    own = Path(__file__).read_text()
    assert [name for name in files if own.count(f'"{name}"') == 0] == []


@SLOW
def test_a_batch_makes_what_is_missing(one_engine, tmp_path, capsys):
    main = example("batch.py")["main"]
    paths = main(tmp_path)
    assert len(paths) == 4
    assert one_engine == [1]
    paths[1].unlink()
    others = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    capsys.readouterr()
    assert main(tmp_path) == paths
    assert capsys.readouterr().out.startswith("1 of 1")
    assert {path: path.stat().st_mtime_ns for path in others} == others


@SLOW
def test_a_clip_begins_as_another_one_does(one_engine, tmp_path):
    one, two = example("keyframes.py")["main"](tmp_path)
    first, other = frames(one), frames(two)
    apart = np.abs(first[0] - other[0]).mean()
    assert apart < 3  # of 255
    assert max(np.abs(first[0] - frame).mean() for frame in other) > 3 * apart  # it goes on from there


@SLOW
def test_references_are_used(one_engine, tmp_path, capsys):
    path = example("references.py")["main"](tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert inspect(path).flags == ()
    red, _, blue = frames(path).max(axis=(0, 1, 2))
    assert blue > red + 60  # the square of the picture


@SLOW
def test_the_client_makes_a_clip(server, tmp_path):
    module = example("client.py")
    job = module["main"]("a red ball bounces with a bell sound", tmp_path / "clip.mp4", server)
    assert job["status"] == "completed"
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    with pytest.raises(RuntimeError, match="prompt"):
        module["main"]("", tmp_path / "none.mp4", server)


@SLOW
def test_the_client_in_typescript_makes_a_clip(server, tmp_path):
    node = shutil.which("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else "v0.0"
    if tuple(map(int, version.strip("v\n").split(".")[:2])) < (22, 6):
        pytest.skip("runs TypeScript: needs Node 22.6 or newer")
    command = [node, "--experimental-strip-types", EXAMPLES / "client.ts", "a ball bounces", tmp_path / "a.mp4", server]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.mp4").stat().st_size > 0


@pytest.fixture
def receiver():
    secret = "whsec_" + base64.b64encode(bytes(32)).decode()
    events = []
    arrived = threading.Event()
    http = example("webhook_receiver.py")["server"](0, secret, lambda event: (events.append(event), arrived.set()))
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", events, arrived
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_receiver_takes_each_event_once_and_no_forged_one(receiver):
    url, events, _ = receiver
    body = json.dumps({"type": "video.completed", "data": {"id": "video_gen_1"}}).encode()

    def post(age_s, key):
        stamp = str(int(time.time()) - age_s)
        digest = hmac.new(key, b"one." + stamp.encode() + b"." + body, hashlib.sha256).digest()
        signature = "v1," + base64.b64encode(digest).decode()
        headers = {"webhook-id": "one", "webhook-timestamp": stamp, "webhook-signature": signature}
        return httpx.post(url, content=body, headers=headers).status_code

    assert [post(0, bytes(32)), post(0, bytes(32))] == [204, 204]
    assert [post(0, b"x" * 32), post(3600, bytes(32))] == [401, 401]
    assert httpx.post(url, content=body).status_code == 401
    assert [event["data"]["id"] for event in events] == ["video_gen_1"]


@SLOW
def test_a_receiver_is_told_by_a_server(server, receiver):
    url, events, arrived = receiver
    body = {"prompt": "a ball bounces", "webhook_url": url, "num_inference_steps": 3, "num_frames": 22}
    job = httpx.post(f"{server}/v1/videos", json=body).raise_for_status().json()
    assert arrived.wait(120)
    assert (events[0]["type"], events[0]["data"]["id"]) == ("video.completed", job["id"])


@SLOW
def test_the_notebooks_cells_run(one_engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "clip.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names: dict[str, object] = {}
    exec(compile(program, "clip.ipynb", "exec"), names)
    assert names["clip"]._repr_html_().startswith("<video")
    assert Path("sibling.mp4").stat().st_size > 0


@SLOW
def test_the_function_of_the_gradio_page_makes_a_clip(server):
    make = example("gradio_app.py")["make"]
    assert Path(make("a red ball bounces", 7, server)).stat().st_size > 0
    with pytest.raises(RuntimeError, match="prompt"):
        make("", 7, server)


def test_the_gradio_page_can_be_built():
    pytest.importorskip("gradio", reason="gradio is not installed here")
    assert example("gradio_app.py")["page"]() is not None
