"""Every accepted job reaches one end state, belongs to its key, and goes with its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from talkies.capacity.demand import Demand
from talkies.engine.port.service import JobEvent
from talkies.errors import ConfigError
from talkies.request import VideoRequest
from talkies.server.app import create_app
from talkies.server.config import ServerConfig
from talkies.server.jobs.live import Live, percent
from tests.server.conftest import Server, serving
from tests.server.fakes import EndedBefore, FakeService, jpeg_bytes


def files_of(server: Server) -> list[str]:
    data = server.coordinator.config.data_dir
    return sorted(str(p.relative_to(data)) for n in ("artifacts", "uploads", "resume") for p in (data / n).iterdir())


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.005)


def test_a_job_waits_as_queued_until_the_engine_takes_it(server: Server) -> None:
    first, second, third = (server.create(f"slow {i}") for i in range(3))
    running = server.wait(first["id"], "in_progress")
    assert running["started_at"] is not None
    places = [server.http.get(f"/v1/videos/{j['id']}").json() for j in (second, third)]
    assert [(p["status"], p["queue_position"], p["progress"]) for p in places] == [("queued", 1, 0), ("queued", 2, 0)]
    assert places[1]["eta_s"] > places[0]["eta_s"] > 0
    server.http.delete(f"/v1/videos/{second['id']}")
    assert server.http.get(f"/v1/videos/{third['id']}").json()["queue_position"] == 1
    server.service.release.set()
    assert server.wait(third["id"])["status"] == "completed"


def test_a_request_is_counted_once_and_the_job_carries_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    service, counted = server.service, []

    def demand_of(request: VideoRequest) -> Demand:
        counted.append(count(request))
        return counted[-1]

    count = service.demand_of
    monkeypatch.setattr(service, "demand_of", demand_of)
    job = server.create("a ball")
    assert server.wait(job["id"])["status"] == "completed"
    assert [service.jobs[job["id"]].demand] == counted


def test_a_waiting_job_waits_for_what_is_left_of_the_running_one() -> None:
    live = Live()
    for name, seconds in (("a", 9.0), ("b", 2.0), ("c", 1.0)):
        live.add(name, predicted_s=seconds)
    live.update("a", begun=True, left_s=3.0)
    assert [live.eta_s(name) for name in "abc"] == [3.0, 5.0, 6.0]


def test_progress_counts_finished_steps_and_reaches_100_only_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=0.03)) as server:
        job = server.create("a ball")
        seen = []
        while (job := server.http.get(f"/v1/videos/{job['id']}").json())["status"] != "completed":
            seen.append((job["progress"], job["step"]))
        assert max(p for p, _ in seen) < 100
        assert [p for p, _ in seen] == sorted(p for p, _ in seen)
        assert len({s for _, s in seen}) >= 4
        assert (job["progress"], job["step"], job["eta_s"]) == (100, None, None)
    assert (percent(0.0), percent(0.999), percent(1.0)) == (0, 99, 99)  # all steps are done, and the file is not there


def test_delete_of_a_running_job_reaches_the_engine_and_removes_everything(server: Server) -> None:
    job = server.create("slow ball")
    server.wait(job["id"], "in_progress")
    answer = server.http.delete(f"/v1/videos/{job['id']}")
    assert (answer.status_code, answer.json()) == (
        200,
        {"id": job["id"], "object": "video.deleted", "deleted": True},
    )
    assert server.http.get(f"/v1/videos/{job['id']}").status_code == 404
    assert server.http.delete(f"/v1/videos/{job['id']}").status_code == 404
    until(lambda: files_of(server) == [])
    assert server.service.steps.get(job["id"], 0) == 0
    assert not server.coordinator.live._states


def test_a_job_deleted_before_the_engine_has_it_is_not_made(tmp_path: Path) -> None:
    def end(job_id: str) -> None:
        assert server.http.delete(f"/v1/videos/{job_id}").status_code == 200

    with serving(tmp_path, service := EndedBefore()) as server:
        service.before = end
        job = server.create("slow ball")
        assert server.http.get(f"/v1/videos/{job['id']}").status_code == 404
        until(lambda: files_of(server) == [])
        assert server.service.steps == {}


def test_delete_racing_the_end_never_brings_a_job_back(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=0.0005)) as server:
        for i in range(40):
            job = server.create("a ball")
            time.sleep(i % 20 * 0.0004)
            assert server.http.delete(f"/v1/videos/{job['id']}").status_code == 200
            assert server.http.get(f"/v1/videos/{job['id']}").status_code == 404
        until(lambda: files_of(server) == [])
        assert server.http.get("/v1/videos").json()["data"] == []
        assert server.coordinator.store.counts() == {}


def test_a_late_end_of_a_settled_job_changes_nothing(server: Server) -> None:
    job = server.create("a ball")
    done = server.wait(job["id"])
    for kind in ("failed", "cancelled", "finished", "progress"):
        server.coordinator.follower.on_event(JobEvent(job_id=job["id"], kind=kind, fraction=0.1))  # type: ignore[arg-type]
    assert server.http.get(f"/v1/videos/{job['id']}").json() == done


def test_a_failed_job_is_200_with_its_error_and_without_server_paths(server: Server) -> None:
    job = server.create("fail please")
    server.wait(job["id"])
    answer = server.http.get(f"/v1/videos/{job['id']}")
    assert (answer.status_code, answer.headers["x-error-status"]) == (200, "500")
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == ("non_finite", 500)
    assert str(server.coordinator.config.data_dir) not in error["message"]
    content = server.http.get(f"/v1/videos/{job['id']}/content")
    assert (content.status_code, content.json()["error"]["code"]) == (422, "video_failed")
    until(lambda: files_of(server) == [])


def test_an_engine_that_writes_no_file_does_not_complete(server: Server) -> None:
    job = server.wait(server.create("lost clip")["id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "output_failed")


def test_one_broken_event_does_not_stop_the_others(server: Server) -> None:
    server.coordinator.follower.on_event(JobEvent(job_id="unknown", kind="progress"))
    server.coordinator.follower.on_event(JobEvent(job_id="unknown", kind="finished", facts={"x": object()}))
    assert server.wait(server.create("a ball")["id"])["status"] == "completed"


def test_a_full_disk_refuses_a_post_in_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server.coordinator.artifacts, "prepare", full)
        answer = server.http.post("/v1/videos", json={"prompt": "a ball"})
    assert answer.status_code == 500
    assert "No space left on device" in answer.json()["error"]["message"]
    assert server.http.get("/v1/videos").json()["data"] == []
    assert server.wait(server.create("a ball")["id"])["status"] == "completed"


def test_slow_references_do_not_hold_up_polls(server: Server) -> None:
    import socket

    deaf = socket.create_server(("127.0.0.1", 0))  # accepts and never answers
    url = f"http://127.0.0.1:{deaf.getsockname()[1]}/x.png"
    object.__setattr__(server.coordinator.config, "allow_hosts", ("127.0.0.1",))
    body = {"prompt": "a ball", "image_reference": {"image_url": url}}

    def post() -> None:
        try:
            httpx.post(f"{server.url}/v1/videos", json=body, timeout=60)
        except httpx.HTTPError:
            return

    threads = [threading.Thread(target=post) for _ in range(50)]
    for thread in threads:
        thread.start()
    fetched, _ = deaf.accept()
    assert server.http.get("/v1/videos").status_code == 200
    assert all(thread.is_alive() for thread in threads)  # answered while all of them wait, not after
    fetched.close()
    deaf.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/videos/sync"])
def test_a_client_that_leaves_while_its_reference_is_fetched_leaves_nothing_stuck(server: Server, path: str) -> None:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    asked, left, sent = threading.Event(), threading.Event(), threading.Event()

    def slow_picture() -> None:
        sock, _ = listener.accept()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg_bytes())}\r\n\r\n"
        try:
            with sock:
                sock.recv(65536)
                asked.set()
                left.wait(30)
                sock.sendall(head.encode() + jpeg_bytes())
        finally:
            sent.set()

    threading.Thread(target=slow_picture, daemon=True).start()
    object.__setattr__(server.coordinator.config, "allow_hosts", ("127.0.0.1",))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.jpg"
    body = {"prompt": "slow", "image_reference": {"image_url": url}}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}{path}", json=body, timeout=1.5, trust_env=False)
    assert asked.wait(30)
    left.set()
    if path.endswith("sync"):  # nobody would read the answer
        until(lambda: server.http.get("/load").json()["server_load"] == 0)
        assert sent.wait(30)
        time.sleep(1.0)  # for a server that would accept the job now
        until(lambda: files_of(server) == [])
    else:  # accepted is accepted: it is in the list, and ends
        until(lambda: server.http.get("/v1/videos").json()["data"])
        server.service.release.set()
    assert server.wait(server.create("a ball")["id"])["status"] == "completed"
    states = {job["status"] for job in server.http.get("/v1/videos").json()["data"]}
    assert states == {"completed"}
    listener.close()


def test_a_disk_that_refuses_the_end_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    refused = threading.Event()

    def full(*_: Any, **__: Any) -> None:
        refused.set()
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(server.coordinator.store, "complete", full)
        job = server.create("a ball")
        until(refused.is_set)
        time.sleep(0.02)
    server.coordinator.sweep()
    assert server.wait(job["id"])["status"] == "completed"


def test_jobs_belong_to_their_key(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("key-of-ann", "key-of-bob"), max_jobs_per_key=2) as server:
        ann, bob = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ann", "bob"))
        job = server.http.post("/v1/videos", json={"prompt": "slow"}, headers=ann).json()
        for method, path in [("GET", ""), ("GET", "/content"), ("GET", "/events"), ("DELETE", "")]:
            answer = server.http.request(method, f"/v1/videos/{job['id']}{path}", headers=bob)
            assert answer.status_code == 404, (method, path)
        assert server.http.get("/v1/videos", headers=bob).json()["data"] == []
        assert [j["id"] for j in server.http.get("/v1/videos", headers=ann).json()["data"]] == [job["id"]]
        for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Basic key-of-ann"}):
            answer = server.http.get("/v1/videos", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/health", "/metrics", "/version", "/ping", "/load", "/"):
            assert server.http.get(path).status_code == 200, path
        server.http.post("/v1/videos", json={"prompt": "slow"}, headers=ann)
        refused = server.http.post("/v1/videos", json={"prompt": "slow"}, headers=ann)
        assert refused.status_code == 429
        assert server.http.post("/v1/videos", json={"prompt": "slow"}, headers=bob).status_code == 200
        assert b"key-of-ann" not in (tmp_path / "jobs.sqlite").read_bytes()


def test_a_full_queue_is_429_with_an_estimate(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=2.0), max_queue=3) as server:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: server.http.post("/v1/videos", json={"prompt": f"{i}"}), range(16)))
        accepted = [a for a in answers if a.status_code == 200]
        refused = [a for a in answers if a.status_code == 429]
        assert len(accepted) + len(refused) == 16
        assert 3 <= len(accepted) <= 4  # three wait, one may have begun in between
        assert refused[0].headers["retry-after"] == "10"  # one job of five steps of 2 s
        assert refused[0].json()["error"]["type"] == "rate_limit_error"
        assert refused[0].json()["error"]["code"] == "queue_full"


def test_predicted_work_can_bound_the_queue(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=1.0), max_queue_s=11.0) as server:
        statuses = [server.http.post("/v1/videos", json={"prompt": "slow"}).status_code for _ in range(6)]
        assert statuses[0] == 200
        assert statuses[-1] == 429


def test_the_same_idempotency_key_returns_the_first_job(server: Server) -> None:
    headers = {"Idempotency-Key": "order-1"}
    with ThreadPoolExecutor(4) as pool:
        posts = [pool.submit(server.http.post, "/v1/videos", json={"prompt": "a"}, headers=headers) for _ in range(8)]
        answers = [post.result() for post in posts]
    assert {a.status_code for a in answers} == {200}
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum("idempotent-replayed" in a.headers for a in answers) == 7
    assert len(server.service.jobs) == 1
    other = server.http.post("/v1/videos", json={"prompt": "b"}, headers=headers)
    assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")
    assert (
        server.http.post("/v1/videos", json={"prompt": "a"}, headers={"Idempotency-Key": "x" * 256}).status_code == 400
    )


def test_the_same_idempotency_key_of_two_api_keys_is_two_jobs(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("key-of-ann", "key-of-bob")) as server:
        keys = [{"Authorization": f"Bearer key-of-{name}", "Idempotency-Key": "one"} for name in ("ann", "bob")]
        answers = [server.http.post("/v1/videos", json={"prompt": "a ball"}, headers=key) for key in keys]
        assert [a.status_code for a in answers] == [200, 200]
        assert answers[0].json()["id"] != answers[1].json()["id"]
        assert "idempotent-replayed" not in answers[1].headers


def test_record_and_file_expire_together(tmp_path: Path) -> None:
    with serving(tmp_path, ttl_s=2.0, sweep_interval_s=0.05) as server:
        job = server.wait(server.create("a ball")["id"])
        assert job["expires_at"] is not None
        until(lambda: files_of(server) == [])
        for path in ("", "/content", "/events"):
            answer = server.http.get(f"/v1/videos/{job['id']}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "expired")
        assert server.http.get("/v1/videos").json()["data"] == []
        assert server.coordinator.store.stored_bytes() == 0


def test_posts_are_503_until_the_model_is_warm_and_when_it_is_dead(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(state="loading")) as server:
        for state, words in (("loading", "loading"), ("dead", "dead")):
            server.service.state = state  # type: ignore[assignment]
            server.service.loading_stage = "text encoder" if state == "loading" else None
            health = server.http.get("/health")
            assert health.status_code == 503
            assert ("engine is loading: text encoder" in health.text) == (state == "loading")
            answer = server.http.post("/v1/videos", json={"prompt": "a ball"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert words in answer.json()["error"]["message"]
        server.service.state = "ready"
        assert server.http.get("/health").status_code == 200
        first = server.create("slow")
        server.service.state = "loading"  # a worker died and is being replaced
        assert server.http.get("/health").status_code == 503
        server.create("accepted all the same")
        server.http.delete(f"/v1/videos/{first['id']}")


def test_a_page_of_another_site_cannot_use_a_server_without_keys(server: Server) -> None:
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = server.http.post("/v1/videos", data={"prompt": "a ball"}, headers=headers)
    assert answer.status_code == 403
    assert (
        server.http.post("/v1/videos", data={"prompt": "a"}, headers={"Sec-Fetch-Site": "same-origin"}).status_code
        == 200
    )


def test_an_orderly_stop_keeps_the_queue(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        jobs = [server.create(f"slow {i}") for i in range(3)]
        server.wait(jobs[0]["id"], "in_progress")
        server.stop()
    with serving(tmp_path) as server:
        server.service.release.set()
        assert [server.wait(job["id"])["status"] for job in jobs] == ["completed"] * 3
        assert list(server.service.runs.values()) == [1, 1, 1]


def test_a_restart_begins_with_what_had_begun_then_by_priority(tmp_path: Path) -> None:
    import sqlite3

    with serving(tmp_path) as server:
        a, b, urgent, begun = (server.create(f"slow {i}", priority=5 * (i == 2))["id"] for i in range(4))
        server.wait(a, "in_progress")
        server.stop()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("UPDATE jobs SET started_at = created_at WHERE id = ?", (begun,))
    db.close()
    with serving(tmp_path) as server:
        server.service.release.set()
        assert [server.wait(job)["status"] for job in (a, b, urgent, begun)] == ["completed"] * 4
        assert list(server.service.runs) == [a, begun, urgent, b]


def test_what_another_version_accepted_or_a_sync_client_left_behind_ends(tmp_path: Path) -> None:
    import sqlite3

    with serving(tmp_path) as server:
        old, left = server.create("slow old"), server.create("slow sync")
        server.stop()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("UPDATE jobs SET request = json_set(request, '$.gone', 1) WHERE id = ?", (old["id"],))
        db.execute("UPDATE jobs SET is_sync = 1, status = 'completed' WHERE id = ?", (left["id"],))
    with serving(tmp_path) as server:
        job = server.wait(old["id"])
        assert (job["status"], job["error"]["code"]) == ("failed", "invalid_request")
        assert server.http.get(f"/v1/videos/{left['id']}").status_code == 404
        until(lambda: files_of(server) == [])


def test_a_kill_right_after_the_end_leaves_no_inputs_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        job = server.wait(server.create("a ball")["id"])
        folder = server.coordinator.store.peek(job["id"]).folder  # type: ignore[union-attr]
    for name in ("uploads", "resume"):
        (tmp_path / name / folder).mkdir(exist_ok=True)
        (tmp_path / name / folder / "left").touch()
    with serving(tmp_path) as server:
        assert files_of(server) == [f"artifacts/{folder}"]
        assert server.http.get(job["url"]).status_code == 200


def test_two_servers_cannot_share_a_folder(server: Server) -> None:
    with pytest.raises(ConfigError, match="another running server"):
        create_app(FakeService(), ServerConfig(data_dir=server.coordinator.config.data_dir))
