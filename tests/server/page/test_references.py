"""Files that a clip follows: thumbnails, roles, order, and their names in the prompt."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor

from talkies.engine.port.service import Job
from tests.server.conftest import Server
from tests.server.fakes import mp4_bytes
from tests.server.page.chromium import until
from tests.server.page.test_stage import DONE, READY, make

DROP = """([name, text]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type: "image/png" }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector("#drop").dispatchEvent(event);
}"""


def picture(colour: str) -> dict[str, Any]:
    out = io.BytesIO()
    Image.new("RGB", (96, 96), colour).save(out, "PNG")
    return {"name": f"{colour}.png", "mimeType": "image/png", "buffer": out.getvalue()}


def received(server: Server) -> list[list[tuple[str, str]]]:
    """For each job from now on: (role, colour) of its pictures and (role, kind) of other files, read when it comes."""
    jobs: list[list[tuple[str, str]]] = []
    submit = server.service.submit

    def look(job: Job) -> None:
        jobs.append([(c.role, _colour(c.uri) if c.kind == "image" else c.kind) for c in job.request.conditions])
        submit(job)

    server.service.submit = look  # type: ignore[method-assign]
    return jobs


def _colour(path: str) -> str:
    pixel = Image.open(path).convert("RGB").getpixel((0, 0))
    return {ImageColor.getrgb(name): name for name in ("red", "lime", "blue")}[pixel]  # type: ignore[index]


def test_a_dropped_picture_is_the_first_frame(open_page: Callable[..., Any], server: Server) -> None:
    jobs = received(server)
    page = open_page(server.url)
    until(page, READY)
    red = picture("red")
    page.evaluate(DROP, [red["name"], base64.b64encode(red["buffer"]).decode()])
    until(page, "document.querySelector('#references img').naturalWidth === 96")
    assert "red.png" in page.inner_text("#references")
    assert "first frame" in page.inner_text("#task")
    make(page, "a ball")
    until(page, DONE)
    assert "frame" in page.inner_text("#facts")
    assert jobs == [[("first", "red")]]


def test_a_video_is_kept_but_for_a_part(open_page: Callable[..., Any], server: Server) -> None:
    """What is kept has no name in the prompt, and a picture beside it is still a frame."""
    seen: list[list[tuple[str, str, float, float | None]]] = []
    submit = server.service.submit

    def look(job: Job) -> None:
        seen.append([(c.kind, c.role, c.start_time_s, c.end_time_s) for c in job.request.conditions])
        submit(job)

    server.service.submit = look  # type: ignore[method-assign]
    page = open_page(server.url)
    until(page, READY)
    film = {"name": "film.mp4", "mimeType": "video/mp4", "buffer": mp4_bytes(num_frames=60)}
    page.set_input_files("#files", files=[film])
    page.select_option("#references select", "footage")
    assert "The picture" not in page.inner_text("#task")
    assert "the picture is kept." in page.inner_text("#task")
    assert not page.is_visible("#references .chip")
    page.fill("#references .time >> nth=0", "0,5")
    assert "but for 0.5 s to the end" in page.inner_text("#task")
    page.fill("#references .time >> nth=1", "1.5")
    make(page, "a ball")
    until(page, DONE)
    assert seen[-1] == [("video", "footage", 0.5, 1.5)]
    page.fill("#references .time >> nth=1", "99")
    page.click("#submit")
    until(page, "document.querySelector('#problem').textContent !== ''")
    assert "outside the clip of 2.333 s" in page.inner_text("#problem")
    assert page.evaluate("document.querySelector('#references li').dataset.bad") == "true"
    page.set_input_files("#files", files=[picture("red")])
    page.click("#references li:nth-child(1) .remove")
    sound = {**film, "name": "sound.wav", "mimeType": "audio/wav"}
    page.set_input_files("#files", files=[sound])
    page.select_option("#references li:nth-child(2) select", "soundtrack")
    assert page.input_value("#references li:nth-child(1) select") == "first"
    make(page, "a ball")
    for _ in range(400):  # the clip before is shown as done until this one has begun
        if len(seen) == 2:
            break
        page.wait_for_timeout(25)
    assert seen[1:] == [[("image", "first", 0.0, None), ("audio", "soundtrack", 0.0, None)]]


def test_roles_are_chosen_and_stay_possible_together(open_page: Callable[..., Any], server: Server) -> None:
    jobs = received(server)
    page = open_page(server.url)
    until(page, READY)
    page.set_input_files("#files", files=[picture("red"), picture("blue")])
    page.select_option("#references li:nth-child(1) select", "last")
    assert page.evaluate("[...document.querySelectorAll('#references select')].map(s => s.value)") == ["last", "first"]
    make(page, "a ball")
    until(page, DONE)
    assert jobs == [[("first", "blue"), ("last", "red")]]
    page.select_option("#references li:nth-child(1) select", "reference")
    assert page.evaluate("[...document.querySelectorAll('#references select')].map(s => s.value)") == ["reference"] * 2
    page.set_input_files("#files", files=[picture("lime")])
    assert page.query_selector("#references select") is None, "three pictures can only be references"
    assert page.inner_text("#task") == "From references."


def test_the_last_frame_alone(open_page: Callable[..., Any], server: Server) -> None:
    jobs = received(server)
    page = open_page(server.url)
    until(page, READY)
    page.set_input_files("#files", files=[picture("blue")])
    page.select_option("#references select", "last")
    make(page, "a ball")
    until(page, DONE)
    assert jobs == [[("last", "blue")]]


def test_order_and_names_of_references(open_page: Callable[..., Any], server: Server, mp4: Path, wav: Path) -> None:
    jobs = received(server)
    page = open_page(server.url)
    until(page, READY)
    page.set_input_files("#files", files=[picture("red"), picture("blue"), picture("lime")])
    page.set_input_files("#files", [str(wav), str(mp4)])
    until(page, "document.querySelector('#references video').readyState >= 1")
    page.click("[aria-label='Move lime.png earlier']")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Move lime.png earlier"
    page.keyboard.press("Enter")
    page.click("[aria-label='Remove blue.png']")
    page.fill("#prompt", "look at")
    page.click("text=<Picture 2>")
    assert page.input_value("#prompt") == "look at <Picture 2> "
    assert page.evaluate("document.activeElement.id") == "prompt"
    chips = "[...document.querySelectorAll('.chip')].filter(c => !c.hidden).map(c => c.textContent)"
    assert page.evaluate(chips) == ["<Picture 1>", "<Picture 2>", "<Audio 1>", "<Video 1>"]
    page.click("[aria-label='Move clip.mp4 earlier']")
    assert page.evaluate(chips) == ["<Picture 1>", "<Picture 2>", "<Video 1>"], "its soundtrack may be Audio 1"
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    until(page, DONE)
    assert jobs == [[("reference", what) for what in ("lime", "red", "video", "audio")]]


def test_an_error_names_the_file(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    until(page, READY)
    bad = {"name": "holiday.png", "mimeType": "image/png", "buffer": b"no picture at all"}
    page.set_input_files("#files", files=[bad, picture("blue")])
    page.select_option("#references li:nth-child(1) select", "last")  # the second of those that are sent
    make(page, "a ball")
    until(page, "problem.textContent")
    assert page.inner_text("#problem").startswith("“holiday.png” must be JPEG")
    assert page.evaluate("[...document.querySelectorAll('#references li')].map(n => n.dataset.bad)") == [
        "true",
        "false",
    ]
    page.click("[aria-label='Remove holiday.png']")
    make(page, "a ball")
    until(page, DONE)
    assert page.inner_text("#problem") == ""


def test_what_the_server_says_of_its_model_later_clears_no_refusal(
    open_page: Callable[..., Any], server: Server
) -> None:
    """The form can be sent once the server is ready, and its limits may come after the first refusal."""
    page = open_page("about:blank")
    held: list[Any] = []
    page.route("**/v1/models", lambda route: held.append(route))  # playwright sets an attribute on what it is given
    page.goto(server.url)
    until(page, READY)
    bad = {"name": "holiday.png", "mimeType": "image/png", "buffer": b"no picture at all"}
    page.set_input_files("#files", files=[bad])
    make(page, "a ball")
    until(page, "problem.textContent")
    assert len(held) == 1
    held[0].continue_()
    until(page, "document.querySelector('#aspect').options.length > 1")
    assert page.inner_text("#problem").startswith("“holiday.png” must be JPEG")
    assert page.get_attribute("#references li", "data-bad") == "true"


@pytest.mark.parametrize("tasks", [("t2va",), ("t2va", "fl2va")])
def test_only_what_the_server_loaded_is_offered(
    open_page: Callable[..., Any], server: Server, monkeypatch: pytest.MonkeyPatch, tasks: tuple[str, ...]
) -> None:
    """A sound or a video can be kept in any case, so that files can always be added."""
    from dataclasses import replace

    monkeypatch.setattr(server.coordinator, "limits", replace(server.coordinator.limits, tasks=tasks))
    page = open_page(server.url)
    until(page, READY)
    until(page, "document.querySelector('#aspect').options.length > 1")
    page.set_input_files("#files", files=[picture("red"), picture("blue"), picture("lime")])
    assert page.inner_text("#task").startswith("“From references” is not loaded on this server")
