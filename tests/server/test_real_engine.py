"""``talkies serve`` as a process, over the real engine with random weights: the whole way from a POST to an MP4."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from talkies.media.probe import probe

# As the command line starts it, but for a state that is saved sooner than every three seconds.
RUN = """
import functools
from talkies.engine import executor
executor.Executor = functools.partial(executor.Executor, save_every_s=0.2)
from tests.server.test_cli import app
app()
"""
MARK = re.compile(r"talkies: (http://\S+)|(ready after)")


@contextmanager
def serve(folder: Path, data_dir: Path, *, end: signal.Signals = signal.SIGINT) -> Iterator[httpx.Client]:
    command = [sys.executable, "-c", RUN, "serve", str(folder), "--port", "0", "--data-dir", str(data_dir)]
    child = subprocess.Popen(
        [*command, "--served-model-name", "tiny", "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stderr is not None
    seen: list[str] = []
    try:
        url = ""
        while "ready after" not in (line := child.stderr.readline()):
            seen.append(line)
            assert line, "".join(seen)
            url = found[1] if (found := MARK.search(line)) and found[1] else url
        threading.Thread(target=child.stderr.read, daemon=True).start()  # or the pipe fills and the server stops
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            yield http
    finally:
        child.send_signal(end)
        child.wait(20)


def post(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/videos", json={"prompt": "a ball", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(http: httpx.Client, job_id: str, timeout_s: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (job := http.get(f"/v1/videos/{job_id}").json())["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    return job


@pytest.fixture(scope="module")
def http(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serve(tiny_folder, tmp_path_factory.mktemp("data")) as client:
        yield client


def test_equal_requests_give_equal_bytes_async_and_sync(http: httpx.Client, tmp_path: Path) -> None:
    fields = {"prompt": "a ball", "extra_params": {"duration": 1}, "num_inference_steps": 4, "seed": 3}
    jobs = [ended(http, post(http, **fields)["id"]) for _ in range(2)]
    files = [http.get(job["url"]).content for job in jobs]
    files.append(http.post("/v1/videos/sync", json=fields).content)
    assert files[0] == files[1] == files[2]
    (tmp_path / "x.mp4").write_bytes(files[0])
    info = probe(tmp_path / "x.mp4")
    assert info.video
    assert info.audio
    assert f"{info.video.width}x{info.video.height}" == jobs[0]["size"]
    assert info.video.frames == jobs[0]["num_frames"] == 39
    assert {"encode", "denoise", "decode"} <= set(jobs[0]["stage_durations"])
    assert http.get(jobs[0]["url"], params={"variant": "thumbnail"}).content[:4] == b"RIFF"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_official_client_makes_a_clip_from_a_picture(http: httpx.Client, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (96, 64), "teal").save(tmp_path / "first.png")
    client = openai.OpenAI(base_url=f"{http.base_url}/v1".replace("//v1", "/v1"), api_key="any")
    with open(tmp_path / "first.png", "rb") as file:
        extra = {"num_inference_steps": 3, "n": 2, "extra_params": {"duration": 1, "task": "fl2va"}}
        video = client.videos.create_and_poll(prompt="a ball", input_reference=file, extra_body=extra)
    assert (video.status, video.size) == ("completed", "96x64"), video
    outputs = [http.get(f"/v1/videos/{video.id}/content", params={"variant": i}).content for i in range(2)]
    assert outputs[0] != outputs[1]
    assert outputs[0][4:8] == outputs[1][4:8] == b"ftyp"


def test_the_model_cards_own_values_name_their_limit(http: httpx.Client) -> None:
    body = {
        "task": "t2va",
        "prompt": "a ball",
        "target": {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": 8},
        "num_inference_steps": 50,
        "quality": "lossless",
    }
    answer = http.post("/v1/videos", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "short_edge")
    assert "must be 64, got 768" in answer.json()["error"]["message"]
    assert http.post("/v1/videos", json={"prompt": "x", "model": "sora-2"}).status_code == 400


def test_delete_frees_the_engine_for_the_next_job(http: httpx.Client) -> None:
    long = post(http, extra_params={"duration": 15}, num_inference_steps=200)
    while http.get(f"/v1/videos/{long['id']}").json()["stage"] != "denoise":
        time.sleep(0.02)
    begun = time.monotonic()
    assert http.delete(f"/v1/videos/{long['id']}").status_code == 200
    assert ended(http, post(http, extra_params={"duration": 1}, num_inference_steps=2)["id"])["status"] == "completed"
    assert time.monotonic() - begun < 10
    assert http.get("/load").json()["server_load"] == 0


def test_a_killed_server_goes_on_and_makes_the_same_file(tiny_folder: Path, tmp_path: Path) -> None:
    fields = {"extra_params": {"duration": 4}, "num_inference_steps": 150, "seed": 11}
    with serve(tiny_folder, tmp_path, end=signal.SIGKILL) as http:
        running, waiting = post(http, **fields), post(http, prompt="later", extra_params={"duration": 1}, n=2)
        deadline = time.monotonic() + 40
        while not list((tmp_path / "resume").glob("*/*.safetensors")):
            assert time.monotonic() < deadline, "nothing was saved"
            assert http.get(f"/v1/videos/{running['id']}").json()["status"] != "completed"
            time.sleep(0.01)
    with serve(tiny_folder, tmp_path) as http:
        assert [ended(http, job["id"])["status"] for job in (running, waiting)] == ["completed"] * 2
        metrics = http.get("/metrics").text
        assert 'talkies_job_events_total{event="resumed",model_name="tiny"} 1.0' in metrics
        again = ended(http, post(http, **fields)["id"])
        first, second = (http.get(f"/v1/videos/{job['id']}/content").content for job in (running, again))
        assert first == second
