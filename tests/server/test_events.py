"""The event stream, the sync form, downloads, metrics: what a client sees while and after a job runs."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService, jpeg_bytes, mp4_bytes
from tests.server.jobs.test_lifecycle import files_of, until


def stream(server: Server, job_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    with server.http.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])


def test_a_stream_tells_place_step_eta_and_preview(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=0.03)) as server:
        first, second = server.create("a ball"), server.create("another")
        seen = list(stream(server, second["id"]))
        kinds = [name for name, _ in seen]
        assert (kinds[0], kinds[-1]) == ("job", "done")
        assert seen[0][1]["queue_position"] == 1
        progress = [data for name, data in seen if name == "progress"]
        steps = [p["step"] for p in progress if p["stage"] == "denoise"]
        assert steps == sorted(steps)
        assert len(steps) >= 4
        assert {p["num_steps"] for p in progress if p["step"]} == {5}
        assert any(p["eta_s"] for p in progress)
        previews = [data for name, data in seen if name == "preview"]
        assert base64.b64decode(previews[0]["jpeg"]) == jpeg_bytes()
        assert seen[-1][1]["status"] == "completed"
        assert [name for name, _ in stream(server, first["id"])] == ["job", "done"]


def test_streams_end_when_their_job_is_deleted(server: Server) -> None:
    job = server.create("slow")
    server.wait(job["id"], "in_progress")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(stream(server, job["id"])))
    thread.start()
    until(lambda: server.coordinator.live._watchers.get(job["id"]))
    httpx.delete(f"{server.url}/v1/videos/{job['id']}")
    thread.join(5)
    assert seen[-1] == ("deleted", {"id": job["id"]})
    until(lambda: not server.coordinator.live._watchers)


def test_a_stop_ends_open_streams_quickly(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=300) as server:
        job = server.create("slow")
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend(stream(server, job["id"])))
        thread.start()
        until(lambda: server.coordinator.live._watchers.get(job["id"]))
        server.stop()
        thread.join(5)
        assert seen[0][0] == "job"


def test_sync_answers_with_the_video_and_keeps_nothing(server: Server) -> None:
    answer = server.http.post("/v1/videos/sync", json={"prompt": "a ball", "n": 1})
    assert (answer.status_code, answer.content) == (200, mp4_bytes())
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["x-request-id"].startswith("video_sync-")
    assert answer.headers["x-model"] == "h3-tiny"
    assert json.loads(answer.headers["x-stage-durations"])["denoise"] == 0.2
    assert float(answer.headers["x-inference-time-s"]) >= 0
    until(lambda: files_of(server) == [])
    assert server.http.get("/v1/videos").json()["data"] == []


@pytest.mark.parametrize("name", ["n", "num_outputs_per_prompt"])
def test_sync_makes_no_output_that_it_could_not_send(server: Server, name: str) -> None:
    answer = server.http.post("/v1/videos/sync", json={"prompt": "a ball", name: 4})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert f"{name}=4, but the answer is one video (use POST /v1/videos" in answer.json()["error"]["message"]
    assert server.service.jobs == {}


def test_sync_errors_have_the_jobs_status(server: Server) -> None:
    answer = server.http.post("/v1/videos/sync", json={"prompt": "oom"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "out_of_memory")
    assert server.http.post("/v1/videos/sync", json={"prompt": ""}).status_code == 400
    until(lambda: files_of(server) == [])


def test_a_sync_client_that_leaves_cancels_its_job(server: Server) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            task = asyncio.create_task(client.post("/v1/videos/sync", json={"prompt": "slow"}, timeout=30))
            while not server.service.runs:
                await asyncio.sleep(0.01)
            task.cancel()

    asyncio.run(leave())
    until(lambda: files_of(server) == [])
    assert server.service.steps == {}
    assert server.wait(server.create("a ball")["id"])["status"] == "completed"


def test_sync_has_a_deadline_only_where_the_operator_sets_one(tmp_path: Path) -> None:
    with serving(tmp_path, sync_timeout_s=0.1) as server:
        answer = server.http.post("/v1/videos/sync", json={"prompt": "slow"})
        assert answer.status_code == 504
        assert "0.1 s" in answer.json()["error"]["message"]
        until(lambda: files_of(server) == [])


def test_content_that_the_client_has_is_not_sent_again(server: Server) -> None:
    url = f"/v1/videos/{server.wait(server.create()['id'])['id']}/content"
    whole = server.http.get(url)
    assert whole.headers["cache-control"] == "private, no-cache"
    for tags in (whole.headers["etag"], f'"other", W/{whole.headers["etag"]}', "*"):
        again = server.http.get(url, headers={"If-None-Match": tags})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", whole.headers["etag"])
    assert server.http.get(url, headers={"If-None-Match": '"other"'}).content == whole.content
    server.http.delete(url.removesuffix("/content"))
    assert server.http.get(url, headers={"If-None-Match": whole.headers["etag"]}).status_code == 404


def test_content_in_ranges(server: Server) -> None:
    job = server.create("slow")
    url = f"/v1/videos/{job['id']}/content"
    early = server.http.get(url)
    assert (early.status_code, "in-progress" in early.text) == (404, True)
    server.service.release.set()
    server.wait(job["id"])
    whole = server.http.get(url, headers={"Accept": "application/binary"})
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
    assert whole.headers["content-disposition"] == f'attachment; filename="{job["id"]}.mp4"'
    part = server.http.get(url, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, mp4_bytes()[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(mp4_bytes())}"
    for header, status in ((f"bytes={10**9}-", 416), ("bytes=x", 400)):
        bad = server.http.get(url, headers={"Range": header})
        assert (bad.status_code, bad.json()["error"]["param"]) == (status, "Range")
    head = server.http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(mp4_bytes())), b"")
    for path in server.coordinator.config.artifacts.glob("*/0.mp4"):
        path.unlink()
    assert server.http.get(url).status_code == 404


def test_metrics_have_the_names_of_the_contract(server: Server) -> None:
    server.wait(server.create("a ball")["id"])
    server.wait(server.create("oom")["id"])
    until(lambda: 'finished_reason="abort"' in server.http.get("/metrics").text)
    text = server.http.get("/metrics").text
    label = 'model_name="h3-tiny"'
    for line in (
        f"vllm_omni:num_requests_running{{{label}}} 0.0",
        f"vllm_omni:num_requests_waiting{{{label}}} 0.0",
        f'vllm_omni:requests_success_total{{finished_reason="stop",{label}}} 1.0',
        f'vllm_omni:requests_success_total{{finished_reason="abort",{label}}} 1.0',
        f"vllm_omni:e2e_request_latency_s_count{{{label}}} 2.0",
        f"talkies_queue_wait_seconds_count{{{label}}} 2.0",
        f"talkies_step_seconds_count{{{label}}} 8.0",
        f'talkies_stage_seconds_count{{{label},stage="denoise"}} 1.0',
        f"talkies_rows_count{{{label}}} 1.0",
        f'talkies_job_events_total{{event="oom",{label}}} 1.0',
        f'talkies_job_errors_total{{code="out_of_memory",{label}}} 1.0',
        f"talkies_stored_bytes{{{label}}} {float(len(mp4_bytes()))}",
        f"talkies_engine_steps_total{{{label}}} 10.0",
        f'talkies_jobs{{kind="completed",{label}}} 1.0',
    ):
        assert line in text, line


def test_a_realtime_client_is_told_in_its_own_protocol(server: Server) -> None:
    from websockets.exceptions import ConnectionClosedError
    from websockets.sync.client import connect

    with connect(server.url.replace("http", "ws", 1) + "/v1/realtime/video") as channel:
        said = json.loads(channel.recv(timeout=10))
        assert (said["type"], said["code"]) == ("error", "not_implemented")
        assert "/v1/videos/{id}/events" in said["message"]
        with pytest.raises(ConnectionClosedError):
            channel.recv(timeout=10)


def test_models_and_small_endpoints(server: Server) -> None:
    model = server.http.get("/v1/models").json()["data"][0]
    assert (model["id"], model["object"], model["root"]) == ("h3-tiny", "model", "h3-tiny")
    assert model["limits"]["canvases"]["16:9"] == "112x64"
    assert server.http.get("/v1/models/h3-tiny").json() == model
    assert server.http.get("/v1/models/other/one").status_code == 404
    loaded = server.http.get("/models").json()
    assert (loaded["model_path"], loaded["device"], loaded["num_gpus"]) == ("h3-tiny", "cpu", 1)
    assert (loaded["pipeline_name"], loaded["pipeline_class"]) == ("minimax_h3", "MiniMaxH3Pipeline")
    assert (loaded["dit_precision"], loaded["vae_precision"]) == ("bf16", "fp16")
    assert set(server.http.get("/version").json()) == {"version"}
    assert server.http.get("/load").json() == {"server_load": 0, "running": 0, "waiting": 0}
    page = server.http.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_a_sync_client_hears_that_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=300) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.http.post, "/v1/videos/sync", json={"prompt": "slow"})
        until(lambda: bool(server.service.jobs))
        server.stop()
        answer = waiting.result(5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (503, "server")
    assert "retry-after" in answer.headers
