"""Who may talk to a server without keys, and who owns what was made before there was one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import Server, serving


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000",
        "localhost",
        "LOCALHOST:8000",
        "[::1]:8000",
        "192.168.1.7",
        "gpu-box",
        "gpu.local",
        "a.localhost.",
    ],
)
def test_local_names_and_addresses_are_answered(server: Server, host: str) -> None:
    assert server.http.get("/v1/videos", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/videos"), ("POST", "/v1/videos"), ("GET", "/"), ("GET", "/health")]
)
def test_a_name_that_points_here_by_somebody_elses_will_is_refused(
    server: Server, host: str, method: str, path: str
) -> None:
    answer = server.http.request(method, path, headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Host")
    assert "--server-name" in answer.json()["error"]["message"]
    assert server.service.jobs == {}


def test_the_operators_names_and_a_key_open_it(tmp_path: Path) -> None:
    with serving(tmp_path / "a", server_names=("Clips.example",)) as server:
        assert server.http.get("/v1/videos", headers={"Host": "clips.example:443"}).status_code == 200
        assert server.http.get("/v1/videos", headers={"Host": "other.example"}).status_code == 403
        same = {"Host": "clips.example", "Origin": "https://clips.example"}
        assert server.http.post("/v1/videos", json={"prompt": "a"}, headers=same).status_code == 200
    with serving(tmp_path / "b", api_keys=("a-long-key",)) as server:
        headers = {"Host": "clips.example", "Authorization": "Bearer a-long-key", "Origin": "https://app.example"}
        assert server.http.get("/v1/videos", headers=headers).status_code == 200
        assert server.http.post("/v1/videos", json={"prompt": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://203.0.113.5", "http://localhost.evil.org", ""]
)
def test_pages_from_elsewhere_change_nothing(server: Server, origin: str) -> None:
    for method, path in (("POST", "/v1/videos"), ("POST", "/v1/videos/sync"), ("DELETE", "/v1/videos/x")):
        answer = server.http.request(method, path, headers={"Origin": origin}, json={"prompt": "a ball"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Origin"), (method, path)
    assert server.service.jobs == {}


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173"])
def test_pages_of_this_machine_may(server: Server, origin: str) -> None:
    assert server.http.post("/v1/videos", json={"prompt": "a"}, headers={"Origin": origin}).status_code == 200


def test_clips_of_the_time_without_a_key_belong_to_the_first_key(tmp_path: Path) -> None:
    once = {"Idempotency-Key": "one"}
    with serving(tmp_path) as server:
        job = server.wait(server.http.post("/v1/videos", json={"prompt": "a"}, headers=once).json()["id"])
    ann, bob = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ann", "bob"))
    with serving(tmp_path, api_keys=("key-of-ann", "key-of-bob")) as server:
        assert server.http.get(f"{job['url']}", headers=ann).status_code == 200
        assert [j["id"] for j in server.http.get("/v1/videos", headers=ann).json()["data"]] == [job["id"]]
        assert server.http.get(f"/v1/videos/{job['id']}", headers=bob).status_code == 404
        again = server.http.post("/v1/videos", json={"prompt": "a"}, headers=ann | once)
        assert again.json()["id"] == job["id"]
    with serving(tmp_path) as server:  # the key is gone again: the clip stays its owner's
        assert server.http.get(f"/v1/videos/{job['id']}").status_code == 404
        other = server.wait(server.http.post("/v1/videos", json={"prompt": "a"}, headers=once).json()["id"])
        assert other["id"] != job["id"]
    with serving(tmp_path, api_keys=("key-of-ann", "key-of-bob")) as server:  # one Idempotency-Key, two clips
        assert {j["id"] for j in server.http.get("/v1/videos", headers=ann).json()["data"]} == {job["id"], other["id"]}
        again = server.http.post("/v1/videos", json={"prompt": "a"}, headers=ann | once)
        assert again.json()["id"] == job["id"]
