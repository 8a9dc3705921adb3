"""One place for a clip: its previews, then itself; what is beside it, and where Cancel and Delete are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService
from tests.server.page.chromium import PHONE, until
from tests.server.page.conftest import Permits

DONE = "stage.dataset.phase === 'done'"
RUNNING = "stage.dataset.phase === 'running'"
READY = "!document.querySelector('#submit').disabled"


def make(page: Any, prompt: str, **fields: str) -> None:
    until(page, READY)
    page.fill("#prompt", prompt)
    for name, value in fields.items():
        page.evaluate("document.querySelector('#advanced').open = true")
        page.fill(f"#{name}", value)
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")


def box(page: Any, selector: str) -> dict[str, float]:
    return page.eval_on_selector(selector, "node => node.getBoundingClientRect().toJSON()")


def test_previews_and_the_clip_play_in_one_place_above_the_fold(
    open_page: Callable[..., Any], stepped: tuple[Server, Permits], size: dict[str, int]
) -> None:
    server, permits = stepped
    page = open_page(server.url, size=size)
    make(page, "a slow ball & <b>bells</b>", seed="77")
    permits.allow(1)
    until(page, "document.querySelector('#frames img')?.naturalWidth === 28")
    first = page.evaluate("bar.value")
    preview = box(page, "#frames img")
    assert preview["top"] >= 0
    assert box(page, "#cancel")["bottom"] <= size["height"], "clip, progress and Cancel are above the fold"
    permits.allow(2)
    until(page, f"bar.value > {first}")
    until(page, "state.textContent.startsWith('Making picture and sound, step 3 of 5')")
    assert page.title() == f"{page.evaluate('bar.value')} % · talkies"
    permits.allow(2)
    until(page, DONE)
    until(page, "document.querySelector('#frames video')?.readyState >= 3")
    clip = box(page, "#frames video")
    assert all(abs(clip[side] - preview[side]) < 1 for side in ("left", "top", "width", "height"))
    page.evaluate("document.querySelector('#frames video').play()")
    until(page, "document.querySelector('#frames video').currentTime > 0.1")
    assert page.evaluate("document.querySelector('#frames video').videoWidth") == 112
    assert page.evaluate("document.querySelector('#frames video').webkitAudioDecodedByteCount") > 0
    assert page.inner_text("#caption") == "a slow ball & <b>bells</b>"
    facts = page.inner_text("#facts")
    assert "Text to clip" in facts
    assert "seed 77" in facts
    with page.expect_download() as download:
        page.click("#tools .download")
    assert download.value.suggested_filename.endswith(".mp4")
    until(page, "document.querySelector('#jobs img').naturalWidth === 112")  # the card has the clip's own picture
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the window"


def test_all_outputs_stand_side_by_side(
    open_page: Callable[..., Any], server: Server, size: dict[str, int], tmp_path: Path
) -> None:
    page = open_page(server.url, size=size)
    make(page, "a ball", outputs="3", seed="9223372036854775805")
    until(page, DONE)
    until(page, "document.querySelectorAll('#frames video').length === 3")
    until(page, "[...document.querySelectorAll('#frames video')].every(v => v.readyState >= 2)")
    boxes = page.evaluate(
        "[...document.querySelectorAll('#frames figure')].map(f => f.getBoundingClientRect().toJSON())"
    )
    assert boxes[0]["top"] == boxes[1]["top"]
    assert boxes[0]["right"] < boxes[1]["left"]
    assert all(b["left"] >= 0 and b["right"] <= size["width"] for b in boxes)
    assert page.evaluate("[...document.querySelectorAll('figcaption')].map(c => c.firstChild.textContent)") == [
        f"Seed {2**63 - 3 + i}" for i in range(3)
    ]
    with page.expect_download() as download:
        page.click("figure:nth-of-type(3) .download")
    assert download.value.suggested_filename.endswith("-2.mp4")
    download.value.save_as(tmp_path / "third.mp4")
    job_id = page.get_attribute("#jobs > li", "id")
    assert (tmp_path / "third.mp4").read_bytes() == server.http.get(f"/v1/videos/{job_id}/content?variant=2").content
    page.evaluate("document.querySelectorAll('#frames video').forEach(video => (video.loop = true))")
    for output in (1, 2):
        page.evaluate(f"document.querySelectorAll('#frames video')[{output}].play()")
        until(page, f"[...document.querySelectorAll('#frames video')].every((v, i) => v.paused === (i !== {output}))")


@pytest.mark.parametrize("outputs", ["1", "3"])
@pytest.mark.parametrize("end", ["done", "failed"])
def test_cancel_and_delete_never_share_a_place(
    open_page: Callable[..., Any], server: Server, size: dict[str, int], outputs: str, end: str
) -> None:
    page = open_page(server.url, size=size)
    make(page, "slow ball" if end == "done" else "slow fail", outputs=outputs)
    until(page, RUNNING)
    cancel = box(page, "#cancel")
    assert not page.is_visible("#delete")
    assert not page.is_visible("#jobs .delete")
    server.service.release.set()
    until(page, f"stage.dataset.phase === '{end}'")
    assert not page.is_visible("#cancel")
    deletes = [box(page, "#delete"), box(page, "#jobs .delete")]
    for other in deletes:
        apart = (
            other["top"] >= cancel["bottom"]
            or other["bottom"] <= cancel["top"]
            or other["left"] >= cancel["right"]
            or other["right"] <= cancel["left"]
        )
        assert other["width"] > 0
        assert apart, (cancel, other)


def test_cancel_stops_the_job(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    make(page, "slow ball")
    until(page, RUNNING)
    job_id = page.get_attribute("#jobs > li", "id")
    page.click("#cancel")
    until(page, f"!({RUNNING})")
    answer = server.http.get(f"/v1/videos/{job_id}")
    assert answer.status_code == 404 or answer.json()["error"]["code"] == "cancelled"
    until(page, "document.activeElement.id === 'prompt'")


def test_a_failed_clip_says_why_in_words(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    make(page, "oom ball")
    until(page, "stage.dataset.phase === 'failed'")
    assert "not enough memory" in page.inner_text("#frames")
    assert page.inner_text("#notes").startswith("In ")  # and what the server said


def test_controls_of_small_clips_come_with_the_focus(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    make(page, "a ball", outputs="2")
    until(page, "document.querySelectorAll('#frames video').length === 2")
    shown = "[...document.querySelectorAll('#frames video')].map(video => video.controls).join()"
    assert page.evaluate(shown) == "false,false"
    page.focus("figure:nth-of-type(2) video")
    until(page, f"{shown} === 'false,true'")
    page.hover("figure:nth-of-type(1) video")
    until(page, f"{shown} === 'true,true'")
    page.focus("#prompt")
    until(page, f"{shown} === 'true,false'")


def test_the_stage_of_loading_is_shown_until_clips_can_be_made(open_page: Callable[..., Any], tmp_path: Path) -> None:
    service = FakeService(state="loading")
    service.loading_stage = "text encoder"
    with serving(tmp_path, service) as server:
        page = open_page(server.url, size=PHONE)
        until(page, "document.querySelector('#frames').textContent.includes('The model is loading')")
        assert "Reading the text encoder." in page.inner_text("#frames")
        assert page.is_disabled("#submit")
        service.loading_stage = "warm-up"
        until(page, "document.querySelector('#frames').textContent.includes('Warming up.')")
        service.state = "ready"
        until(page, READY)
        assert "Your clip plays here" in page.inner_text("#frames")
        page.click("text=Try an example")
        assert "red ball" in page.input_value("#prompt")
        make(page, "a ball")
        until(page, DONE)
        service.state, service.loading_stage = "loading", None  # its worker died; the queue is open
        until(page, "banner.textContent.startsWith('The engine is starting again')")
        assert not page.is_disabled("#submit")
        service.state = "dead"
        until(page, "banner.textContent.startsWith('The engine has stopped')")
        assert page.is_disabled("#submit")


def test_a_reload_finds_the_clip_in_work_again(open_page: Callable[..., Any], server: Server) -> None:
    server.create("an old ball")
    job = server.create("slow ball")
    page = open_page(server.url)
    until(page, f"{RUNNING} && caption.textContent === 'slow ball'")
    page.reload()
    until(page, f"{RUNNING} && caption.textContent === 'slow ball'")
    server.service.release.set()
    until(page, DONE)
    assert page.get_attribute("#jobs > li", "id") == job["id"], "the newest comes first"
