"""``talkies serve`` as a process, over the real engine with random weights: the whole way from a POST to an MP4."""

from __future__ import annotations

import base64
import json
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

from talkies.media.read.probe import probe

# As the command line starts it, but for a state that is saved sooner than every three seconds.
RUN = """
import functools
from talkies.engine.service import executor
executor.Executor = functools.partial(executor.Executor, save_every_s=0.2)
from tests.server.test_cli import app
app()
"""
MARK = re.compile(r"talkies: (http://\S+)|(ready after)")


@contextmanager
def serve(folder: Path, data_dir: Path, *, end: signal.Signals = signal.SIGINT) -> Iterator[httpx.Client]:
    with running(folder, data_dir, end=end) as (http, _):
        yield http


@contextmanager
def running(
    folder: Path, data_dir: Path, *flags: str, end: signal.Signals = signal.SIGINT
) -> Iterator[tuple[httpx.Client, int]]:
    """(client, pid) of a server in a process of its own."""
    command = [sys.executable, "-c", RUN, "serve", str(folder), "--port", "0", "--data-dir", str(data_dir)]
    child = subprocess.Popen(
        [*command, "--served-model-name", "tiny", "--threads", "1", *flags],
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
            yield http, child.pid
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
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "target.short_edge")
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


def whole(http: httpx.Client, job: dict[str, Any], path: Path) -> Any:
    """The file of a completed job, probed."""
    job = ended(http, job["id"])
    assert job["status"] == "completed", job
    path.write_bytes(http.get(job["url"]).content)
    info = probe(path)
    assert info.video
    assert info.audio
    return info


@pytest.fixture(scope="module")
def png(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    path = tmp_path_factory.mktemp("png") / "first.png"
    Image.new("RGB", (96, 64), "teal").save(path)
    return path


@pytest.mark.parametrize("dialect", ["multipart", "urlencoded", "json", "sglang", "upload"])
def test_every_dialect_makes_an_mp4(http: httpx.Client, dialect: str, png: Path, tmp_path: Path) -> None:
    extra = {"task": "t2va", "duration": 1, "audio_flow_shift": 3.0}
    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    plain = {"prompt": "a ball", "seconds": "1", "size": "96x64", "num_inference_steps": "4"}
    requests: dict[str, dict[str, Any]] = {
        "multipart": {
            "files": {
                "prompt": (None, "a ball"),
                "width": (None, "96"),
                "height": (None, "64"),
                "num_inference_steps": (None, "4"),
                "flow_shift": (None, "12"),
                "extra_params": (None, json.dumps(extra)),
            }
        },
        "urlencoded": {"data": plain},
        "json": {"json": {"prompt": "a ball", "num_inference_steps": 4, "size": "96x64", "extra_params": extra}},
        "sglang": {
            "json": {
                "task": "fl2va",
                "prompt": "a ball",
                "conditions": [{"type": "image", "uri": uri, "role": "keyframe", "frame_index": 0}],
                "target": {"short_edge": 64, "aspect_ratio": "auto", "duration_seconds": 1},
                "num_inference_steps": 4,
                "flow_shift": 12.0,
                "audio_flow_shift": 3.0,
                "quality": "lossless",
            }
        },
        "upload": {"data": plain, "files": {"input_reference": ("a.png", png.read_bytes(), "image/png")}},
    }
    answer = http.post("/v1/videos", **requests[dialect])
    assert answer.status_code == 200, answer.text
    info = whole(http, answer.json(), tmp_path / "x.mp4")
    assert (info.video.width, info.video.height, info.video.frames) == (96, 64, 39)


@pytest.mark.parametrize(
    ("fields", "param", "limit"),
    [
        ({"size": "1280x720"}, "size", "over the limit of 6144"),
        ({"size": "1344x768", "seconds": "1"}, "size", "the largest canvas of this shape is"),
        ({"short_edge": 768}, "short_edge", "must be 64, got 768"),
        ({"seconds": "16"}, "seconds", "outside 0.917..15"),
        ({"num_inference_steps": 500}, "num_inference_steps", "200"),
        ({"task": "ref2va", "input_reference": "https://example.com/a.png"}, "task", "t2va, fl2va"),
        ({"fps": 30}, "fps", "must be 24"),
    ],
)  # fmt: skip
def test_the_originals_values_name_their_limit(
    http: httpx.Client, fields: dict[str, Any], param: str, limit: str
) -> None:
    answer = http.post("/v1/videos", json={"prompt": "a ball", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert limit in error["message"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_official_client_from_create_to_delete(http: httpx.Client, tmp_path: Path) -> None:
    client = openai.OpenAI(base_url=f"{http.base_url}/v1".replace("//v1", "/v1"), api_key="any")
    extra = {"num_inference_steps": 3, "extra_params": {"task": "t2va", "duration": 1.2, "audio_flow_shift": 2.0}}
    made = [client.videos.create(prompt=f"clip {i}", extra_body={**extra, "seed": i}) for i in range(3)]
    for video in made:
        ended(http, video.id)
    listed = [video.id for video in client.videos.list(limit=2)]  # pages until there are no more
    assert [video.id for video in made] == [i for i in reversed(listed) if i in {video.id for video in made}]
    last = client.videos.retrieve(made[-1].id)
    assert (last.status, last.size, last.seconds) == ("completed", "96x64", "1.625")
    client.videos.download_content(last.id).write_to_file(tmp_path / "x.mp4")
    info = probe(tmp_path / "x.mp4")
    assert info.video
    assert info.video.frames == 39  # 1.2 s, snapped: extra_params reached the engine
    assert info.request["request"]["audio_shift"] == 2.0
    assert client.videos.delete(last.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(last.id)


def forwards(http: httpx.Client) -> float:
    found = re.search(r"talkies_engine_forwards_total\{.*\} (\S+)", http.get("/metrics").text)
    assert found
    return float(found[1])


def idle(http: httpx.Client) -> float:
    """Forwards done, once nobody works and the figure stands still."""
    deadline = time.monotonic() + 30
    while http.get("/load").json()["server_load"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    before = -1.0
    while before != (now := forwards(http)):
        before = now
        time.sleep(1.2)  # the worker says its figures every second
    return now


@pytest.mark.parametrize("how", ["delete", "disconnect"])
def test_an_unwanted_job_takes_no_further_steps(http: httpx.Client, how: str) -> None:
    before = idle(http)
    fields = {"prompt": "a ball", "seconds": 15, "num_inference_steps": 200}
    if how == "delete":
        job = http.post("/v1/videos", json=fields).json()
        while (http.get(f"/v1/videos/{job['id']}").json()["step"] or 0) < 3:
            time.sleep(0.01)
        assert http.delete(f"/v1/videos/{job['id']}").json()["deleted"]
        assert http.get(f"/v1/videos/{job['id']}").status_code == 404
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{http.base_url}/v1/videos/sync", json=fields, timeout=1.5, trust_env=False)
    done = idle(http) - before
    assert 1 <= done < 150, "of 199"
    assert idle(http) - before == done
    assert (
        http.get("/v1/videos").json()["data"] == []
        or how == "delete"
        or all(not video["id"].startswith("video_sync") for video in http.get("/v1/videos").json()["data"])
    )


def test_an_idempotency_key_makes_one_clip(http: httpx.Client) -> None:
    body = {"prompt": "a ball", "seconds": 1, "num_inference_steps": 3}
    headers = {"Idempotency-Key": "once"}
    first, second = (http.post("/v1/videos", json=body, headers=headers) for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotent-replayed"] == "true"
    assert http.post("/v1/videos", json={**body, "seed": 1}, headers=headers).status_code == 409


def test_a_budget_refuses_at_post_and_says_what_would_fit(tiny_folder: Path, tmp_path: Path) -> None:
    with running(tiny_folder, tmp_path / "free") as (http, pid):
        held_mib = sum(rss_mib(pid)[1:])
    budget = round(held_mib) + 256 + 60  # beside the memo's share: room for a short clip, not for a long one
    with running(tiny_folder, tmp_path / "tight", "--ram-budget", f"{budget}MiB") as (http, _):
        answer = http.post("/v1/videos", json={"prompt": "a ball", "seconds": 15, "size": "96x64"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "seconds"), error
        assert f"{budget} MiB (--ram-budget)" in error["message"]
        found = re.search(r"at most (\d+) frames", error["message"])
        assert found
        fits = post(http, num_frames=int(found[1]), size="96x64", num_inference_steps=2)
        assert ended(http, fits["id"])["status"] == "completed"


def rss_mib(pid: int) -> list[float]:
    """Of the server and of the processes that it started."""
    pids, figures = [pid], []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    for one in pids:
        pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
        figures.append(pages * 4096 / 2**20)
    return figures


@pytest.mark.slow
def test_memory_after_twenty_mixed_jobs_equals_after_two(png: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """Finished, failed, cancelled and refused ones; both processes. The tolerance is what Python's and the C
    library's heaps need to settle."""
    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()

    def mixed(http: httpx.Client, n: int) -> None:
        jobs = []
        for i in range(n):
            fields: dict[str, Any] = {"seconds": 1 + i % 3, "num_inference_steps": 3 + i % 4, "seed": i}
            if i % 4 == 1:
                fields["image_reference"] = {"image_url": uri}
            if i % 5 == 3:
                fields |= {"seconds": 10, "num_inference_steps": 200}
            job = post(http, prompt=f"clip {i}", **fields)
            if i % 5 == 4:  # its upload goes before its turn comes: it fails
                for path in (tmp_path / "data" / "uploads").rglob("*"):
                    path.unlink() if path.is_file() else None
            if i % 5 == 3:
                http.delete(f"/v1/videos/{job['id']}")
            else:
                jobs.append(job["id"])
            http.post("/v1/videos", json={"prompt": "a ball", "size": "63x64"})
        ends = {ended(http, job_id)["status"] for job_id in jobs}
        assert "completed" in ends
        idle(http)

    with running(tiny_folder, tmp_path / "data") as (own, pid):
        mixed(own, 2)
        mixed(own, 10)  # every kind once, and the caches are full
        before = rss_mib(pid)
        mixed(own, 20)
        after = rss_mib(pid)
        assert len(before) == len(after) == 2
        assert after[0] - before[0] < 8, (before, after)
        assert after[1] - before[1] < 24, (before, after)
