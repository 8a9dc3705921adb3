"""The page in a real browser: submit, see progress and previews, play picture and sound, cancel, delete."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService

CHROMIUM = shutil.which("chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--autoplay-policy=no-user-gesture-required",
]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]


def until(page: Any, expression: str) -> None:
    """Playwright's own waiting evaluates inside the page, which its Content-Security-Policy forbids."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {expression}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.outside = []
    page.faults = []
    page.on("request", lambda r: page.outside.append(r.url) if "127.0.0.1" not in r.url else None)
    page.on("pageerror", lambda e: page.faults.append(str(e)))
    page.on("console", lambda m: page.faults.append(m.text) if "Content Security" in m.text else None)
    yield page
    assert page.faults == []
    assert [url for url in page.outside if not url.startswith(("data:", "blob:"))] == []
    context.close()


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, FakeService(step_s=0.4)) as server:
        yield server


def test_submit_watch_play_and_repeat(page: Any, slow_server: Server) -> None:
    page.goto(slow_server.url)
    until(page, "document.querySelector('#task').options.length > 1")
    page.fill("#prompt", "a red ball & <b>bells</b>")
    page.fill("#seed", "77")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    job = page.wait_for_selector("#jobs > li")
    seen, kinds = set(), set()
    while job.get_attribute("data-status") != "completed":
        seen.add(job.eval_on_selector("progress", "bar => bar.value"))
        if job.eval_on_selector("img", "img => img.naturalWidth") == 28:
            kinds.add("preview")
        page.wait_for_timeout(30)
    assert len(seen) >= 3, "progress did not move"
    until(page, "document.querySelector('#jobs img').naturalWidth === 112")  # the clip's own picture at the end
    assert "preview" in kinds
    assert job.query_selector(".prompt").inner_text() == "a red ball & <b>bells</b>"
    assert "seed 77" in job.inner_text()
    job.query_selector("button.play").click()
    until(page, "player.readyState >= 3 && player.currentTime > 0.1")
    assert page.evaluate("player.videoWidth") == 112
    assert page.evaluate("player.webkitAudioDecodedByteCount") > 0
    page.fill("#prompt", "")
    job.query_selector("button.again").click()
    assert page.input_value("#prompt") == "a red ball & <b>bells</b>"
    assert page.input_value("#seed") == "77"
    with page.expect_download() as download:
        job.query_selector("button.download").click()
    assert download.value.suggested_filename.endswith(".mp4")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wider than a phone"


def test_cancel_stops_the_job(page: Any, server: Server) -> None:
    page.goto(server.url)
    page.fill("#prompt", "slow ball")
    page.click("#submit")
    page.wait_for_selector("li[data-status=in_progress]")
    job_id = page.get_attribute("#jobs > li", "id")
    page.click("li button.cancel")
    page.wait_for_selector("#jobs > li", state="detached")
    assert server.http.get(f"/v1/videos/{job_id}").status_code == 404


def test_a_refusal_is_shown_with_its_limit(page: Any, server: Server) -> None:
    page.goto(server.url)
    until(page, "document.querySelector('#seconds').max")
    page.evaluate("document.querySelector('#seconds').max = ''")
    page.fill("#prompt", "a ball")
    page.fill("#seconds", "99")
    page.click("#submit")
    until(page, "document.querySelector('#problem').textContent.includes('0.9..6')")


DROP = """text => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "key.png", { type: "image/png" }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector("#drop").dispatchEvent(event);
}"""


def test_dropped_files_become_references(page: Any, server: Server, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (96, 96), "blue").save(tmp_path / "key.png")
    page.goto(server.url)
    page.evaluate(DROP, base64.b64encode((tmp_path / "key.png").read_bytes()).decode())
    assert "key.png" in page.inner_text("#references")
    page.fill("#prompt", "a ball")
    page.click("#submit")
    page.wait_for_selector("li[data-status=completed]")
    assert "fl2va" in page.inner_text("#jobs > li")


def test_a_key_is_asked_for_and_used_for_playing(page: Any, tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("a-long-key",)) as server:
        page.goto(server.url)
        page.wait_for_selector("#key", state="visible")
        page.fill("#key", "a-long-key")
        page.keyboard.press("Tab")
        until(page, "document.querySelector('#model').textContent === 'h3-tiny'")
        page.fill("#prompt", "a ball")
        page.click("#submit")
        page.wait_for_selector("li[data-status=completed]")
        page.click("li button.play")
        until(page, "player.videoWidth === 112")
