"""The official client, unchanged, against a live server."""

from __future__ import annotations

import base64
import warnings
from pathlib import Path

import openai
import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import mp4_bytes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any")


def test_create_and_poll_then_download(client: openai.OpenAI, tmp_path: Path) -> None:
    video = client.videos.create_and_poll(prompt="a red ball", seconds="2", size="112x64")  # type: ignore[arg-type]
    assert (video.status, video.progress, video.size) == ("completed", 100, "112x64")
    assert float(video.seconds) == pytest.approx(56 / 24, abs=1e-3)
    content = client.videos.download_content(video.id)
    assert content.read() == mp4_bytes()
    assert client.videos.download_content(video.id, variant="thumbnail").read()[:4] == b"RIFF"
    assert client.videos.download_content(video.id, variant="spritesheet").read()[:2] == b"\xff\xd8"


def test_a_failing_job_ends_the_poll_with_its_error(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="please fail")
    assert video.status == "failed"
    assert video.error is not None
    assert video.error.code == "non_finite"


def test_nested_extra_params_are_honoured(client: openai.OpenAI) -> None:
    extra = {"extra_params": {"task": "t2va", "duration": 1.5, "audio_flow_shift": 2.5}, "seed": 7}
    video = client.videos.create(prompt="a ball", extra_body=extra)
    raw = video.to_dict()
    assert (raw["task"], raw["seed"], raw["num_frames"]) == ("t2va", 7, 39)


def test_a_list_of_references_keeps_its_order(client: openai.OpenAI, png: Path, wav: Path) -> None:
    """The client sends lists of objects column by column: every type, then every uri."""
    conditions = [
        {"type": kind, "uri": f"data:{mime};base64," + base64.b64encode(path.read_bytes()).decode()}
        for kind, mime, path in (("audio", "audio/wav", wav), ("image", "image/png", png))
    ]
    video = client.videos.create(
        prompt="the object from picture 1 with the sound of audio 1", extra_body={"conditions": conditions}
    )
    raw = video.to_dict()
    assert (raw["task"], raw["warnings"]) == ("ref2va", [])


def test_a_file_becomes_the_first_frame(client: openai.OpenAI, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (128, 64), "red").save(tmp_path / "first.png")
    with open(tmp_path / "first.png", "rb") as file:
        video = client.videos.create(prompt="a ball", input_reference=file)
    assert video.to_dict()["task"] == "fl2va"
    assert video.size == "128x64"


def test_bytes_without_a_name_are_what_they_are(client: openai.OpenAI, png: Path) -> None:
    """The client sends them as "upload" of type application/octet-stream."""
    video = client.videos.create(prompt="a ball", input_reference=png.read_bytes())
    assert video.to_dict()["task"] == "fl2va"


def test_list_pages_retrieve_and_delete(client: openai.OpenAI) -> None:
    made = [client.videos.create(prompt=f"clip {i}").id for i in range(5)]
    page = client.videos.list(limit=2)
    assert [video.id for video in page.data] == made[:-3:-1]
    assert [video.id for video in client.videos.list(limit=2)] == made[::-1]
    assert [video.id for video in client.videos.list(limit=3, order="asc")] == made
    assert client.videos.retrieve(made[0]).id == made[0]
    deleted = client.videos.delete(made[0])
    assert (deleted.deleted, deleted.object) == (True, "video.deleted")
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(made[0])


def test_errors_reach_the_client_as_its_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.videos.create(prompt="a ball", seconds="99")  # type: ignore[arg-type]
    assert caught.value.param == "seconds"
    assert "6" in str(caught.value)


def test_a_remix_and_a_cancelled_job(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="a red ball", extra_body={"seed": 7})
    remix = client.videos.remix(video.id, prompt="a blue ball")
    assert (remix.remixed_from_video_id, remix.prompt, remix.size) == (video.id, "a blue ball", video.size)
    assert remix.to_dict()["seed"] == 7
    slow = client.videos.create(prompt="a slow ball")
    client.post(f"/videos/{slow.id}/cancel", cast_to=type(slow))
    ended = client.videos.poll(slow.id)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.post(f"/videos/{video.id}/cancel", cast_to=type(slow))


def test_what_is_not_here_is_asked_for_once(server: Server, client: openai.OpenAI, png: Path) -> None:
    """The client repeats a 5xx twice, unless it is told not to."""
    asked = []
    client._client.event_hooks["request"] = [lambda request: asked.append(request.url.path)]
    with pytest.raises(openai.InternalServerError) as caught:
        client.videos.extend(prompt="more", seconds="4", video=png.read_bytes())
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (501, "not_implemented", "server_error")
    assert asked == ["/v1/videos/extensions"]
    with pytest.raises(openai.InternalServerError):
        client.videos.edit(prompt="other", video=png.read_bytes())
    with pytest.raises(openai.InternalServerError):
        client.videos.create_character(name="Ann", video=png.read_bytes())
    with pytest.raises(openai.InternalServerError):
        client.videos.get_character("c")
    assert len(asked) == 4


def test_the_words_of_an_error_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.videos.create(prompt="a ball", size="113x64")  # type: ignore[arg-type]
    assert (bad.value.type, bad.value.code, bad.value.param) == ("invalid_request_error", "invalid_request", "size")
    with pytest.raises(openai.NotFoundError) as absent:
        client.videos.retrieve("video_gen_x")
    assert (absent.value.type, absent.value.code) == ("invalid_request_error", "not_found")


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("right-key",)) as server, warnings.catch_warnings():
        with pytest.raises(openai.AuthenticationError, match="API key"):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").videos.list()
        assert openai.OpenAI(base_url=f"{server.url}/v1", api_key="right-key").videos.list().data == []
