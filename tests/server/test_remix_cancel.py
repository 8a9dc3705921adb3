"""A job is made again with another prompt, or ended with its record kept."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import EndedBefore
from tests.server.jobs.test_lifecycle import files_of, until


def remix(server: Server, job: dict[str, Any], **fields: Any) -> Any:
    return server.http.post(f"/v1/videos/{job['id']}/remix", json=fields)


def test_a_remix_is_the_same_request_with_another_prompt(server: Server) -> None:
    wishes = {
        "size": "64x112",
        "seconds": 2,
        "seed": 7,
        "n": 2,
        "num_inference_steps": 9,
        "flow_shift": 5,
        "fit": "pad",
    }
    job = server.wait(server.create("a red ball", audio=False, **wishes)["id"])
    answer = remix(server, job, prompt="a blue ball")
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["prompt"], made["remixed_from_video_id"]) == ("a blue ball", job["id"])
    assert made["warnings"] == job["warnings"]
    same = ("size", "seconds", "num_frames", "seed", "num_outputs", "num_inference_steps", "task", "quality")
    assert {name: made[name] for name in same} == {name: job[name] for name in same}
    before, after = (server.service.jobs[j["id"]].request for j in (job, made))
    assert (after.video_shift, after.fit, after.audio) == (before.video_shift, before.fit, before.audio)
    done = server.wait(made["id"])
    assert (done["status"], done["remixed_from_video_id"]) == ("completed", job["id"])
    assert server.http.get(f"/v1/videos/{job['id']}").json()["remixed_from_video_id"] is None


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"seed": 8}, {"seed": 8, "size": "64x112"}),
        ({"aspect_ratio": "1:1"}, {"size": "64x64", "num_frames": 56, "seed": 7}),
        ({"num_frames": 22}, {"num_frames": 22, "size": "64x112"}),
        ({"target": {"duration_seconds": 3}}, {"num_frames": 73, "size": "64x112", "seed": 7}),
        ({"extra_params": '{"duration": 3}'}, {"num_frames": 73, "size": "64x112"}),
        (
            {"extra_params": {"seed": 9, "target": {"aspect_ratio": "1:1"}}},
            {"size": "64x64", "num_frames": 56, "seed": 9},
        ),
        ({"extra_body": {"extra_params": {"audio_flow_shift": 2}}}, {"size": "64x112", "num_frames": 56, "seed": 7}),
        ({"num_forwards": 3}, {"num_inference_steps": 4}),
        ({"n": 1}, {"num_outputs": 1}),
    ],
)
def test_what_a_remix_names_is_what_changes(server: Server, changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    job = server.create("a red ball", size="64x112", seconds=2, seed=7, n=2, num_inference_steps=9)
    made = remix(server, job, prompt="a blue ball", **changes).json()
    assert {name: made[name] for name in wanted} == wanted
    assert [w for w in made["warnings"] if "is ignored" in w] == []  # nothing of the source stands against it


def test_a_remix_of_references_wants_them_again(server: Server, png: Path) -> None:
    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    job = server.create("a ball", image_reference={"image_url": uri}, frame_indices=[-1])
    answer = remix(server, job, prompt="a cube")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "video_id")
    assert "made from 1 references, which are not kept" in answer.json()["error"]["message"]
    made = remix(server, job, prompt="a cube", image_reference={"image_url": uri}).json()
    assert (made["task"], made["size"], made["remixed_from_video_id"]) == ("fl2va", job["size"], job["id"])


def test_bad_remixes_are_refused_like_any_request(server: Server) -> None:
    job = server.create("a ball")
    for fields, param in (
        ({}, "prompt"),
        ({"prompt": "b", "seeed": 1}, "seeed"),
        ({"prompt": "b", "seed": "x"}, "seed"),
    ):
        answer = remix(server, job, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert remix(server, {"id": "video_gen_x"}, prompt="b").status_code == 404
    form = server.http.post(f"/v1/videos/{job['id']}/remix", data={"prompt": "b", "seed": "9"})
    assert form.json()["seed"] == 9


def test_a_remix_belongs_to_the_key_of_its_source(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("key-of-ann", "key-of-bob")) as server:
        ann, bob = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ann", "bob"))
        job = server.http.post("/v1/videos", json={"prompt": "slow"}, headers=ann).json()
        for action in ("remix", "cancel"):
            path = f"/v1/videos/{job['id']}/{action}"
            assert server.http.post(path, json={"prompt": "b"}, headers=bob).status_code == 404
            assert server.http.post(path, json={"prompt": "b"}).status_code == 401
        assert server.http.post(f"/v1/videos/{job['id']}/remix", json={"prompt": "b"}, headers=ann).status_code == 200


def test_a_cancelled_job_keeps_its_record(server: Server) -> None:
    running, waiting = server.create("slow ball"), server.create("slow cube")
    server.wait(running["id"], "in_progress")
    for job in (waiting, running):
        answer = server.http.post(f"/v1/videos/{job['id']}/cancel")
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert (said["status"], said["error"]["code"], said["error"]["status"]) == ("failed", "cancelled", 499)
        assert said["completed_at"] is not None
    until(lambda: files_of(server) == [])  # the engine has stopped, and its files are gone
    for job in (waiting, running):
        now = server.http.get(f"/v1/videos/{job['id']}").json()
        assert (now["status"], now["error"]["code"], now["prompt"]) == ("failed", "cancelled", job["prompt"])
        assert server.http.post(f"/v1/videos/{job['id']}/cancel").json() == now  # once more is the same
    assert server.service.steps == {}
    assert [server.coordinator.live.get(job["id"]) for job in (waiting, running)] == [None, None]
    assert server.wait(server.create("a ball")["id"])["status"] == "completed"
    text = server.http.get("/metrics").text
    assert 'talkies_job_events_total{event="cancelled",model_name="h3-tiny"} 2.0' in text


def test_what_has_ended_is_not_cancelled(server: Server) -> None:
    job = server.wait(server.create("a ball")["id"])
    answer = server.http.post(f"/v1/videos/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert answer.headers["x-should-retry"] == "false"
    assert server.http.get(f"/v1/videos/{job['id']}").json() == job
    assert server.http.get(job["url"]).status_code == 200
    assert server.http.post("/v1/videos/video_gen_x/cancel").status_code == 404


def test_a_watcher_hears_that_its_job_was_cancelled(server: Server) -> None:
    job = server.create("slow ball")
    server.wait(job["id"], "in_progress")
    heard = []
    with server.http.stream("GET", f"/v1/videos/{job['id']}/events") as stream:
        event = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
                if event == "job" and not heard:
                    assert server.http.post(f"/v1/videos/{job['id']}/cancel").status_code == 200
            elif line.startswith("data: "):
                heard.append((event, json.loads(line.removeprefix("data: "))))
    assert heard[-1][0] == "done"
    assert heard[-1][1]["error"]["code"] == "cancelled"


def test_a_job_cancelled_before_the_engine_has_it_is_not_made(tmp_path: Path) -> None:
    def end(job_id: str) -> None:
        assert server.http.post(f"/v1/videos/{job_id}/cancel").status_code == 200

    with serving(tmp_path, service := EndedBefore()) as server:
        service.before = end
        job = server.create("slow ball")
        assert server.http.get(f"/v1/videos/{job['id']}").json()["error"]["code"] == "cancelled"
        until(lambda: files_of(server) == [])
        assert server.service.steps == {}


def test_a_cancelled_job_stays_so_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        job = server.create("slow ball")
        server.http.post(f"/v1/videos/{job['id']}/cancel")
        server.stop()
    with serving(tmp_path) as server:
        server.service.release.set()
        assert server.http.get(f"/v1/videos/{job['id']}").json()["error"]["code"] == "cancelled"
        assert server.service.runs == {}
