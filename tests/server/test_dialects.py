"""The request shapes that users of vLLM-Omni, SGLang and OpenAI paste, over the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server
from tests.server.fakes import mp4_bytes


def accepted(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_vllm_omni_multipart_with_extra_params_as_text(server: Server) -> None:
    # curl -F prompt=.. -F 'extra_params={...}' of the recipe, with values legal here
    form = {
        "prompt": (None, "a red ball"),
        "width": (None, "112"),
        "height": (None, "64"),
        "num_inference_steps": (None, "8"),
        "flow_shift": (None, "12"),
        "seed": (None, "42"),
        "guidance_scale": (None, "5.0"),
        "extra_params": (None, json.dumps({"task": "t2va", "duration": 2, "audio_flow_shift": 3.0})),
    }
    job = accepted(server.http.post("/v1/videos", files=form))
    assert (job["size"], job["num_frames"], job["num_forwards"], job["num_inference_steps"]) == ("112x64", 56, 7, 8)
    assert job["warnings"] == [
        "guidance_scale is ignored: the model is guidance-distilled",
        "seconds=2 became 2.333 (56 frames), the next legal length",
    ]


def test_urlencoded_form_with_whole_seconds(server: Server) -> None:
    job = accepted(server.http.post("/v1/videos", data={"prompt": "a ball", "seconds": "2", "size": "64x112"}))
    assert (job["size"], job["seconds"]) == ("64x112", "2.333")


@pytest.mark.parametrize(
    "body", [{"aspect_ratio": 1.0}, {"extra_params": {"aspect_ratio": 1}}, {"target": {"aspect_ratio": 0.98}}]
)
def test_a_ratio_is_a_number_as_well(server: Server, body: dict[str, Any]) -> None:
    assert accepted(server.http.post("/v1/videos", json={"prompt": "a ball", **body}))["size"] == "64x64"


def test_bracket_names_are_folded(server: Server) -> None:
    form = {"prompt": "x", "extra_params[task]": "t2va", "extra_params[duration]": "1.5", "target[short_edge]": "64"}
    job = accepted(server.http.post("/v1/videos", data=form))
    assert (job["task"], job["num_frames"]) == ("t2va", 39)


def test_sglang_json_of_the_model_card(server: Server, png: Path) -> None:
    import base64

    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    body = {
        "task": "fl2va",
        "prompt": "a ball",
        "conditions": [{"type": "image", "uri": uri, "role": "keyframe", "frame_index": 0}],
        "target": {"short_edge": 64, "aspect_ratio": "auto", "duration_seconds": 2},
        "seed": 0,
        "num_outputs_per_prompt": 1,
        "num_inference_steps": 10,
        "flow_shift": 12.0,
        "audio_flow_shift": 3.0,
        "quality": "lossless",
        "size": "112x64",
        "seconds": 5,
    }
    job = accepted(server.http.post("/v1/videos", json=body))
    assert (job["task"], job["size"], job["num_frames"], job["seed"]) == ("fl2va", "112x64", 56, 0)
    assert "size 112x64 is ignored: target.aspect_ratio wins" in job["warnings"]
    assert "seconds is ignored: target.duration_seconds wins" in job["warnings"]


def test_uploads_become_keyframes_or_references(server: Server, png: Path, mp4: Path, wav: Path) -> None:
    def post(*files: tuple[str, Path, str], **data: str) -> dict[str, Any]:
        parts = [(name, (path.name, path.read_bytes(), mime)) for name, path, mime in files]
        return accepted(server.http.post("/v1/videos", data={"prompt": "a ball", **data}, files=parts))

    one = post(("input_reference", png, "image/png"))
    two = post(("input_references", png, "image/png"), ("input_references", png, "image/png"))
    last = post(("input_reference", png, "image/png"), extra_params='{"frame_indices": [-1]}')
    mixed = post(
        ("input_references", mp4, "video/mp4"),
        ("input_references", png, "image/png"),
        ("input_references", wav, "application/octet-stream"),
    )
    roles = {job["id"]: [(c.kind, c.role) for c in server.service.jobs[job["id"]].request.conditions]
             for job in (one, two, last, mixed)}  # fmt: skip
    assert roles[one["id"]] == [("image", "first")]
    assert roles[two["id"]] == [("image", "first"), ("image", "last")]
    assert roles[last["id"]] == [("image", "last")]
    assert roles[mixed["id"]] == [("video", "reference"), ("image", "reference"), ("audio", "reference")]
    assert (mixed["task"], mixed["size"], one["size"]) == ("ref2va", "112x64", "112x64")


def test_the_job_is_the_truth_not_the_request(server: Server) -> None:
    job = server.create("a ball", extra_params={"duration": 1.5}, n=2, seed=[5, 6], return_stage_metrics=True)
    assert (job["status"], job["num_outputs"], job["seed"], job["error"]) == ("queued", 2, 5, None)
    done = server.wait(job["id"])
    assert (done["status"], done["progress"], done["seconds"], done["duration_s"]) == ("completed", 100, "1.625", 1.625)
    assert done["stage_durations"] == {"encode": 0.01, "denoise": 0.2, "decode": 0.05}
    planned = ("size", "num_frames", "fps", "task", "seed", "num_forwards", "num_inference_steps")
    assert [done[name] for name in planned] == [job[name] for name in planned]
    assert (done["task"], done["num_forwards"]) == ("t2va", 19)
    assert done["metrics"]["queue_wait_s"] >= 0
    assert done["url"] == f"/v1/videos/{job['id']}/content"
    for variant in ("0", "1", "video"):
        answer = server.http.get(done["url"], params={"variant": variant})
        assert (answer.status_code, answer.content) == (200, mp4_bytes())
    for variant, status in (("2", 404), ("11", 400), ("poster", 400)):
        answer = server.http.get(done["url"], params={"variant": variant})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, "variant")


def test_precedence_is_told_as_warnings(server: Server) -> None:
    job = server.create(
        "a ball", size="112x64", width=64, height=64, seconds="1", num_frames=56, extra_params={"duration": 2},
        aspect_ratio="1:1", video_params={"fps": 24, "num_frames": 22},
    )  # fmt: skip
    assert (job["size"], job["num_frames"]) == ("112x64", 56)
    assert job["warnings"] == [
        "video_params.num_frames is ignored: num_frames wins",
        "seconds is ignored: extra_params.duration wins",
        "width and height are ignored: size wins",
        "aspect_ratio is ignored: size 112x64 wins",
        "num_frames is ignored: the duration wins",
        "seconds=2 became 2.333 (56 frames), the next legal length",
    ]


def test_an_extra_body_is_part_of_the_body(server: Server) -> None:
    job = server.create("a ball", seed=3, n=2, extra_body={"seed": 4, "num_frames": 39, "n": None, "prompt": None})
    assert (job["seed"], job["num_frames"], job["num_outputs"]) == (4, 39, 2)
    assert job["warnings"] == ["seed is ignored: extra_body.seed wins"]
    assert server.create("a ball", extra_params={"lora": None, "output_path": None})["warnings"] == []  # as on top


def test_snapping_and_unnamed_references_are_told(server: Server, mp4: Path, png: Path) -> None:
    assert server.create("a ball", num_frames=48)["warnings"] == ["num_frames=48 became 56, the next legal length"]
    job = server.create("a ball", seconds=1)
    assert job["warnings"] == ["seconds=1 became 1.625 (39 frames), the next legal length"]
    assert server.wait(job["id"])["warnings"] == job["warnings"]
    assert server.create("a ball", seconds=1.625)["warnings"] == []
    parts = [
        ("input_references", (p.name, p.read_bytes(), mime)) for p, mime in ((mp4, "video/mp4"), (png, "image/png"))
    ]
    job = accepted(server.http.post("/v1/videos", data={"prompt": "<Video 1> in the style of this"}, files=parts))
    assert job["warnings"] == ["the prompt never mentions <Picture 1>"]


@pytest.mark.parametrize("word", ["auto", "standard", "default", "hd", "lossless"])
def test_words_for_the_default_quality(server: Server, word: str) -> None:
    assert server.create("a ball", quality=word)["quality"] == "lossless"


def test_steps_and_forwards_say_the_same(server: Server) -> None:
    assert server.create("a ball", num_forwards=7)["num_inference_steps"] == 8
    assert server.create("a ball", sigmas=[1, 0.5, 0])["num_forwards"] == 2
    assert server.create("a ball")["num_forwards"] == 19


def test_width_and_height_need_no_aspect_ratio(server: Server) -> None:
    assert server.create("a ball", width=96, height=64, task="t2va")["size"] == "96x64"


def test_fl2va_without_images_is_text_to_video(server: Server) -> None:
    assert server.create("a ball", task="fl2va")["task"] == "t2va"


def test_audio_false_reaches_the_engine(server: Server) -> None:
    job = server.create("a ball", audio=False)
    assert server.service.jobs[job["id"]].request.audio is False


def test_fields_that_change_nothing_here_are_taken_and_told(server: Server) -> None:
    sent = {
        "response_format": "url",
        "output_quality": "high",
        "output_compression": 80,
        "preencode_mp4": True,
        "generator_device": "cuda",
        "enable_teacache": False,
        "enable_upscaling": False,
        "frame_interpolation_exp": 1,
        "max_sequence_length": 512,
        "extra_params": {
            "preencode_mp4": True,
            "preencode_batch_frames": 33,
            "video_codec_options": {"preset": "ultrafast"},
            "pad_seq_len": 4096,
            "force_refresh_step_hint": 3,
        },
    }
    job = server.create("a ball", **sent)
    assert job["quality"] == "lossless"  # output_quality is about the file's compression
    told = {warning.partition(" is ignored: ")[0] for warning in job["warnings"]}
    silent = {"extra_params", "enable_upscaling", "frame_interpolation_exp"}
    assert told == ({*sent} - silent) | {f"extra_params.{name}" for name in sent["extra_params"]}  # type: ignore[attr-defined]
    form = {"prompt": "a ball", "preencode_mp4": "true", "output_compression": "80", "response_format": "b64_json"}
    assert accepted(server.http.post("/v1/videos", data=form))["status"] == "queued"


def test_a_reference_url_is_a_picture_unless_it_says_otherwise(server: Server, png: Path, wav: Path) -> None:
    import base64

    def url(path: Path, mime: str) -> str:
        return f"data:{mime};base64," + base64.b64encode(path.read_bytes()).decode()

    job = server.create("a ball", reference_url=url(png, "application/octet-stream"))
    conditions = server.service.jobs[job["id"]].request.conditions
    assert [(c.kind, c.role) for c in conditions] == [("image", "first")]
    both = {"task": "ref2va", "reference_url": url(png, "image/png"), "audio_reference": url(wav, "audio/wav")}
    job = server.create("<Picture 1> and <Audio 1>", **both)
    conditions = server.service.jobs[job["id"]].request.conditions
    assert [(c.kind, c.role) for c in conditions] == [("image", "reference"), ("audio", "reference")]


def test_flat_frame_indices_win_over_those_of_the_target(server: Server, png: Path) -> None:
    import base64

    uri = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    body = {"image_reference": {"image_url": uri}, "target": {"frame_indices": [-1]}}
    job = server.create("a ball", **body)
    assert server.service.jobs[job["id"]].request.conditions[0].role == "last"
    job = server.create("a ball", frame_indices=[0], **body)
    assert server.service.jobs[job["id"]].request.conditions[0].role == "first"
    assert job["warnings"] == ["target.frame_indices is ignored: frame_indices wins"]
    wrong = {"image_reference": {"image_url": uri}, "target": {"frame_indices": [5]}}
    answer = server.http.post("/v1/videos", json={"prompt": "a ball", **wrong})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "target.frame_indices")


@pytest.mark.parametrize("num_frames", [22, 39, 56, 73, 124, 158])
def test_the_seconds_of_a_job_make_the_same_clip_again(server: Server, num_frames: int) -> None:
    job = server.create("a ball", num_frames=num_frames)
    again = server.create("a ball", seconds=job["seconds"])
    assert (again["num_frames"], again["warnings"]) == (num_frames, [])


def test_what_a_refusal_prints_as_allowed_is_accepted(tmp_path: Path) -> None:
    """Lengths that no short decimal is: 22 and 124 frames are 0.91666.. and 5.1666.. s."""
    from dataclasses import replace

    from tests.server.conftest import serving
    from tests.server.fakes import LIMITS, FakeService

    service = FakeService()
    limits = replace(LIMITS, min_seconds=22 / 24, max_seconds=124 / 24, max_frames=124)
    service.info = replace(service.info, limits=limits)
    with serving(tmp_path, service) as server:
        for wrong in (99, 5.1675, 0.9, 124.3 / 24, 0.9155):
            answer = server.http.post("/v1/videos", json={"prompt": "a ball", "seconds": wrong})
            assert answer.status_code == 400
            assert "0.917..5.166" in answer.json()["error"]["message"]
        for printed, frames in (("0.917", 22), ("5.166", 124), ("5.167", 124), ("0.916667", 22), ("5.16667", 124)):
            assert server.create("a ball", seconds=printed)["num_frames"] == frames
