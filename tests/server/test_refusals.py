"""Every bad value is a 400 at the POST, in OpenAI's shape, naming field, limit and value; nothing reaches the queue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.media import corpus
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService, mp4_bytes

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
GIF = "data:image/gif;base64,R0lGODlhAQABAAAAACw="

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": "  \t"}, "prompt", "blank"),
    ({"prompt": "x" * 7001}, "prompt", "7001 characters, over the limit of 7000"),
    ({"prompt": 5}, "prompt", "text"),
    ({"prompt": "a huge ball"}, "num_frames", "needs about 9 GiB"),
    ({"promt": "a"}, "promt", "did you mean 'prompt'?"),
    ({"model": "sora-2"}, "model", "Model mismatch"),
    ({"seed": 2**64}, "seed", "outside -9223372036854775808..9223372036854775807"),
    ({"seed": 10**60}, "body", "digits"),
    ({"seed": "7"}, "seed", "not an integer"),
    ({"seed": [1, 3], "n": 2}, "seed", "count up by one"),
    ({"fps": 0}, "fps", "must be 24"),
    ({"fps": 30}, "fps", "must be 24"),
    ({"num_frames": -1}, "num_frames", "outside"),
    ({"num_frames": 100_000}, "num_frames", "outside 22..158"),
    ({"seconds": "99"}, "seconds", "0.9..6"),
    ({"seconds": 0}, "seconds", "0"),
    ({"seconds": "four"}, "seconds", "not a number"),
    ({"seconds": True}, "seconds", "not a number"),
    ({"extra_params": {"duration": 16}}, "extra_params.duration", "16"),
    ({"target": {"duration_seconds": 16}}, "target.duration_seconds", "16"),
    ({"extra_params": {"durration": 2}}, "extra_params.durration", "did you mean 'duration'?"),
    ({"extra_params": "{"}, "extra_params", "Invalid JSON"),
    ({"extra_body": {"seeed": 4}}, "seeed", "did you mean 'seed'?"),
    ({"extra_body": {"extra_body": {"seed": 4}}}, "extra_body.extra_body", "one level up"),
    ({"extra_params": [1]}, "extra_params", "expected an object, got list"),
    ({"size": "big"}, "size", "WIDTHxHEIGHT"),
    ({"size": "113x64"}, "size", "use 112 or 128"),
    ({"size": "320x64"}, "size", "1:4..4:1"),
    ({"width": 112}, "height", "missing"),
    ({"aspect_ratio": "wide"}, "aspect_ratio", "21:9"),
    ({"short_edge": 768}, "short_edge", "must be 64, got 768"),
    ({"target": {"short_edge": 768}}, "target.short_edge", "must be 64, got 768"),
    ({"extra_params": {"target": {"short_edge": 768}}}, "extra_params.target.short_edge", "must be 64, got 768"),
    ({"video_params": {"fps": 30}}, "video_params.fps", "must be 24"),
    ({"num_inference_steps": 1}, "num_inference_steps", "2..200"),
    ({"num_inference_steps": 201}, "num_inference_steps", "2..200"),
    ({"num_inference_steps": 9, "num_forwards": 9}, "num_forwards", "num_inference_steps=10"),
    ({"num_outputs_per_prompt": 11}, "num_outputs_per_prompt", "1..10"),
    ({"n": 1, "num_outputs_per_prompt": 2}, "n", "differ"),
    ({"n": 11}, "n", "1..10"),
    ({"num_forwards": 500}, "num_forwards", "num_forwards=500 is outside 1..199"),
    ({"extra_params": {"num_forwards": 0}}, "extra_params.num_forwards", "num_forwards=0 is outside 1..199"),
    ({"sigmas": [1.0, 1e-50, 0.0]}, "sigmas", "under 0.0001"),
    ({"flow_shift": 0}, "flow_shift", "outside"),
    ({"flow_shift": "nan"}, "flow_shift", "not a number"),
    ({"quality": "ultra"}, "quality", "lossless"),
    ({"task": "t2v"}, "task", "t2va, fl2va, ref2va"),
    ({"extra_params": {"task": "t2v"}}, "extra_params.task", "t2va, fl2va, ref2va"),
    ({"extra_params": {"frame_index": 0}}, "extra_params.frame_index", "images"),
    ({"extra_params": {"start_time_seconds": 1}}, "extra_params.start_time_seconds", "one per video"),
    ({"task": "ref2va"}, "conditions", "at least one image or video"),
    ({"task": "t2va", "image_reference": {"image_url": GIF}}, "task", "t2va takes no image"),
    ({"image_reference": {"image_url": GIF}}, "image_reference", "GIF"),
    ({"image_reference": {"file_id": "f"}}, "image_reference", "file_id"),
    ({"image_reference": {"url": "x"}}, "image_reference.url", "image_url"),
    ({"image_reference": {"image_url": "http://127.0.0.1/x"}}, "image_reference", "loopback"),
    ({"image_reference": {"image_url": "http://169.254.169.254/x"}}, "image_reference", "link-local"),
    ({"image_reference": {"image_url": "file:///etc/passwd"}}, "image_reference", "not allowed"),
    ({"image_reference": {"image_url": "/etc/passwd"}}, "image_reference", "http(s) URL or data URL"),
    ({"input_references": [GIF], "image_reference": {"image_url": GIF}}, "image_reference", "exclude each other"),
    ({"conditions": [{"type": "picture", "uri": GIF}]}, "conditions[0].type", "image, video, video_audio, audio"),
    ({"conditions": [{"uri": GIF}]}, "conditions[0].type", "is missing"),
    ({"conditions": [{"type": "image"}]}, "conditions[0].uri", "is missing"),
    ({"conditions": ["a"]}, "conditions[0]", "expected an object, got text"),
    ({"conditions": [{"type": "image", "uri": GIF, "role": "frame"}]}, "conditions[0].role", "keyframe or reference"),
    ({"conditions": [{"type": "video", "uri": GIF, "role": "keyframe"}]}, "conditions[0].role", "keyframes are images"),
    (
        {"conditions": [{"type": "image", "uri": GIF, "role": "reference", "frame_index": 0}]},
        "conditions[0].frame_index",
        "use role keyframe",
    ),
    (
        {"conditions": [{"type": "video", "uri": GIF, "start_time_seconds": -1}]},
        "conditions[0].start_time_seconds",
        "outside [0, inf]",
    ),
    ({"target": {"frame_indices": [0]}}, "target.frame_indices", "needs the images it places"),
    ({"conditions": [{"type": "image", "uri": GIF, "wieght": 1}]}, "conditions[0].wieght", "unknown field"),
    (
        {"conditions": [{"type": "image", "uri": GIF, "role": "keyframe", "frame_index": 5}]},
        "conditions[0].frame_index",
        "-1",
    ),
    ({"audio_reference": {"audio_url": "data:audio/wav,abc"}}, "audio_reference", "audio alone is refused"),
    ({"frame_indices": [0]}, "frame_indices", "images"),
    ({"lora": {"name": "a", "path": "/x"}}, "lora", "no adapter is called 'a' (known: film, fast)"),
    ({"extra_params": {"lora": {"name": "a"}}}, "extra_params.lora", "no adapter is called 'a'"),
    ({"lora": {"path": "/x"}}, "lora", "has no name"),
    ({"lora": {"name": "film", "weight": 1}}, "lora.weight", "unknown field"),
    ({"lora": "film"}, "lora", "Invalid JSON"),
    ({"lora": 3}, "lora", "expected an object, got integer"),
    ({"lora": {"name": "film"}, "adapters": []}, "lora", "are both given"),
    ({"adapters": ["film", "nobody"]}, "adapters", "no adapter is called 'nobody' (known: film, fast)"),
    ({"adapters": ["../film"]}, "adapters", "is not a name"),
    ({"adapters": "film"}, "adapters", "Invalid JSON"),
    ({"adapters": [{"strength": 1}]}, "adapters[0]", "has no name"),
    ({"adapters": [{"name": "film", "strength": "much"}]}, "adapters[0].strength", "not a number"),
    ({"adapters": [{"name": "film", "strength": 1000}]}, "adapters.strength", "[-100, 100]"),
    ({"adapters": [{"name": "film", "path": "/x"}]}, "adapters[0].path", "unknown field"),
    ({"adapters": ["film", "film"]}, "adapters", "named twice"),
    (
        {"adapters": ["fast"], "num_inference_steps": 50},
        "num_inference_steps",
        "was distilled for 4 (use num_inference_steps=5, which are 4 forwards",
    ),
    ({"adapters": ["fast"], "num_forwards": 3}, "num_forwards", "use num_inference_steps=5, which are 4 forwards"),
    ({"adapters": ["fast"], "extra_params": {"flow_shift": 6}}, "extra_params.flow_shift", "use flow_shift=12.0"),
    ({"adapters": ["fast"], "input_reference": GIF}, "adapters", "was trained for t2va, and this request is fl2va"),
    ({"output_compression": "much"}, "output_compression", "not an integer"),
    ({"reference_url": "http://127.0.0.1/x"}, "reference_url", "loopback"),
    ({"video_url": "https://example.com/x.mp4"}, "video_url", "video_reference"),
    ({"enable_upscaling": True}, "enable_upscaling", "as large as the model makes it"),
    ({"width": 320, "height": 64}, "width", "1:4..4:1"),
    ({"width": 640, "height": 320}, "width", "over the limit"),
    ({"video_params": {"width": 640, "height": 320}}, "video_params.width", "over the limit"),
    ({"seconds": 5, "prompt": "a huge ball"}, "seconds", "needs about 9 GiB"),
    ({"flow_shift": 1000.0001}, "flow_shift", "flow_shift=1000.0001 is outside"),
    ({"enable_frame_interpolation": True}, "enable_frame_interpolation", "own rate"),
    ({"output_path": "/etc/x"}, "output_path", "content"),
    ({"webhook_url": "https://example.com/x"}, "webhook_url", "webhook secret"),
    ({"priority": 1000}, "priority", "-100..100"),
    ({"audio": "yes"}, "audio", "true or false"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.mark.parametrize(("fields", "param", "words"), CASES, ids=[json.dumps(c[0])[:60] for c in CASES])
def test_bad_values_name_the_field(shared: Server, fields: dict[str, Any], param: str, words: str) -> None:
    answer = shared.http.post("/v1/videos", json={"prompt": "a ball", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["status"], error["param"]) == ("invalid_request_error", 400, param)
    assert error["code"] in ("invalid_request", "invalid_media", "unsupported_task")
    assert words in error["message"], error["message"]


def test_nothing_refused_left_a_trace(shared: Server) -> None:
    assert shared.http.get("/v1/videos").json()["data"] == []
    assert shared.service.jobs == {}
    for folder in ("artifacts", "uploads", "resume"):
        assert list((shared.coordinator.config.data_dir / folder).iterdir()) == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"prompt": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"prompt": "\\ud800"}', "application/json", 400),
        (b'{"\\ud800": 1}', "application/json", 400),
        (b"prompt=a", "text/plain", 415),
        (b"prompt=a", "", 415),
        (b"nonsense", "multipart/form-data", 400),
        (b"--b\r\nnonsense", "multipart/form-data; boundary=b", 400),
        (b"prompt=a&prompt=b", "application/x-www-form-urlencoded", 400),
        (b"prompt=a&extra_params[a][b][c][d][e]=1", "application/x-www-form-urlencoded", 400),
        (b"prompt=a&extra_params=%7B%7D&extra_params[task]=t2va", "application/x-www-form-urlencoded", 400),
        (b"prompt=a&conditions[5][type]=image", "application/x-www-form-urlencoded", 400),
        (b"prompt=a&[=1", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"x%d=1" % i for i in range(2000)), "application/x-www-form-urlencoded", 400),
    ],
)
def test_malformed_bodies_are_client_errors(shared: Server, content: bytes, kind: str, status: int) -> None:
    answer = shared.http.post("/v1/videos", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"]


def test_uploads_are_checked_by_content_and_leave_no_file(shared: Server) -> None:
    for name, mime, words in (("x.png", "image/png", "image 1"), ("x.mp4", "video/mp4", "video 1")):
        files = [("input_reference", (f"../../../../tmp/{name}", PNG, mime))]
        answer = shared.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "input_reference"
        assert words in answer.json()["error"]["message"]
    assert list((shared.coordinator.config.data_dir / "uploads").iterdir()) == []
    assert not Path("/tmp/x.png").exists()


def test_damage_in_the_middle_of_an_upload_is_found_before_the_job_waits(shared: Server) -> None:
    """The headers and the first pictures are whole: only decoding what the job would read finds it."""
    film = corpus.noisy_video("mp4")
    song = corpus.compressed("mp3", codec="libmp3lame", rate=44_100, seconds=8.0)
    middle = len(film) // 2
    spoiled = film[:middle] + bytes(2000) + film[middle + 2000 :]
    whole = ("input_references", ("a.mp4", film, "video/mp4"))
    for name, data, mime, words in (
        ("a.mp4", spoiled, "video/mp4", "video 1 is damaged"),
        ("a.mp3", song[: len(song) // 3], "audio/mpeg", "audio 1 is truncated: 2.6"),
    ):
        files = [("input_references", (name, data, mime))] + ([] if name == "a.mp4" else [whole])
        answer = shared.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_references"), answer.text
        assert words in answer.json()["error"]["message"]
    files = [whole, ("input_references", ("a.mp3", song, "audio/mpeg"))]
    assert shared.http.post("/v1/videos", data={"prompt": "a ball"}, files=files).status_code == 200


def test_bodies_and_files_over_their_limit_are_413(tmp_path: Path) -> None:
    with serving(tmp_path, max_body_bytes=20 << 20) as server:
        declared = server.http.post(
            "/v1/videos", content=b"x" * (21 << 20), headers={"Content-Type": "application/json"}
        )
        chunked = server.http.post(
            "/v1/videos", content=(b"x" * (1 << 20) for _ in range(30)), headers={"Content-Type": "application/json"}
        )
        for answer in (declared, chunked):
            assert answer.status_code == 413
            assert "20 MiB" in answer.json()["error"]["message"]
        assert "21.0 MiB" in declared.json()["error"]["message"]
        files = [("input_references", ("a.wav", b"x" * (16 << 20), "audio/wav"))]
        answer = server.http.post("/v1/videos", data={"prompt": "a ball", "task": "ref2va"}, files=files)
        assert answer.status_code == 400  # audio alone: structure is checked before a byte is copied
        files.append(("input_references", ("a.mp4", mp4_bytes(), "video/mp4")))
        answer = server.http.post("/v1/videos", data={"prompt": "a ball"}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "input_references")
        assert "15 MiB" in answer.json()["error"]["message"]


def test_absent_endpoints_answer_in_the_error_shape(shared: Server) -> None:
    for method, path, status in [
        ("POST", "/v1/videos/edits", 501),
        ("POST", "/v1/videos/extensions", 501),
        ("POST", "/v1/videos/characters", 501),
        ("GET", "/v1/videos/characters/c", 501),
        ("POST", "/v1/omni/sleep", 501),
        ("POST", "/v1/chat/completions", 404),
        ("PUT", "/v1/videos", 405),
        ("GET", "/v1/videos/video_gen_x", 404),
        ("DELETE", "/v1/videos/video_gen_x", 404),
        ("GET", "/v1/videos/video_gen_x/content", 404),
        ("GET", "/v1/videos/video_gen_x/events", 404),
        ("GET", "/v1/videos?limit=abc", 400),
        ("GET", "/v1/videos?limit=101", 400),
        ("GET", "/v1/videos?order=up", 400),
        ("GET", "/web/../config.py", 404),
    ]:
        answer = shared.http.request(method, path)
        assert answer.status_code == status, (method, path, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code", "status"}
        assert error["status"] == status
        wanted = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 501: "not_implemented"}
        assert error["code"] == wanted[status]
        assert error["type"] == ("server_error" if status == 501 else "invalid_request_error")
        assert answer.headers.get("x-should-retry") == ("false" if status == 501 else None)


def test_a_wrong_method_is_told_the_right_ones(shared: Server) -> None:
    for path, methods in {
        "/v1/videos": "GET, POST",
        "/v1/videos/video_gen_x": "DELETE, GET",
        "/v1/videos/sync": "POST",
        "/health": "GET, HEAD",
        "/": "GET, HEAD",
    }.items():
        answer = shared.http.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods), path


def test_a_bad_query_names_its_value(shared: Server) -> None:
    error = shared.http.get("/v1/videos?limit=101").json()["error"]
    assert (error["param"], error["message"]) == (
        "limit",
        "limit: Input should be less than or equal to 100, got '101'",
    )


def test_a_partition_that_is_not_served_is_refused_at_post(tmp_path: Path) -> None:
    service = FakeService()
    service.info = replace(service.info, limits=replace(service.info.limits, tasks=("ref2va",)))
    with serving(tmp_path, service) as server:
        answer = server.http.post("/v1/videos", json={"prompt": "a ball", "task": "t2va"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "task")
        assert "ref2va" in answer.json()["error"]["message"]
