"""What the server answers, in a person's words; keys; a server below a path of another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, serving
from tests.server.page.chromium import until
from tests.server.page.test_stage import DONE, READY, make


@pytest.mark.parametrize(
    ("fields", "said", "field"),
    [
        ({"seconds": "99"}, "Length in seconds must be 0.9", "seconds"),
        ({"steps": "1"}, "Steps must be 2 to 200; you wrote 1.", "steps"),
        ({"seed": "1.5"}, "Seed", "seed"),
        ({"prompt": " "}, "Describe the clip first", "prompt"),
        ({"prompt": "a huge ball"}, "This clip needs about 9 GiB. Use less.", "seconds"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_refusal_names_the_field_and_its_limit(
    open_page: Callable[..., Any], server: Server, fields: dict[str, str], said: str, field: str
) -> None:
    page = open_page(server.url)
    make(page, **{"prompt": "a ball", **fields})
    until(page, "problem.textContent")
    text = page.inner_text("#problem")
    assert said in text
    assert "=" not in text
    until(page, f"document.activeElement.id === '{field}'")
    assert page.get_attribute(f"#{field}", "aria-invalid") == "true"
    page.fill("#prompt", "a ball")
    page.fill(f"#{field}", "a ball" if field == "prompt" else {"seed": "1", "steps": "3"}.get(field, "2"))
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    until(page, DONE)
    assert page.inner_text("#problem") == ""
    assert page.query_selector("[aria-invalid]") is None


def test_a_full_queue_says_when_to_come_back(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serving(tmp_path, max_queue=1) as server:
        page = open_page(server.url)
        make(page, "slow ball")
        until(page, "document.querySelectorAll('#jobs > li').length === 1")
        make(page, "slow ball")
        until(page, "document.querySelectorAll('#jobs > li').length === 2 || problem.textContent")
        if not page.inner_text("#problem"):
            make(page, "slow ball")
        until(page, "problem.textContent.startsWith('The server has enough to do. Try again')")


def test_a_server_that_is_gone_and_comes_back(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    until(page, READY)
    page.route("**/*", lambda route: route.abort())
    until(page, "banner.textContent === 'The server cannot be reached. Trying again.'")
    make(page, "a ball")
    until(page, "problem.textContent === 'The server cannot be reached. Is it running?'")
    page.unroute_all()
    until(page, "banner.hidden")


def test_the_page_draws_a_seed_and_shows_it(open_page: Callable[..., Any], server: Server) -> None:
    page = open_page(server.url)
    make(page, "a ball")
    until(page, DONE)
    made = server.http.get("/v1/videos").json()["data"][0]["seed"]
    assert f"seed {made}" in page.inner_text("#facts")
    drawn = int(page.input_value("#seed"))
    assert drawn != made, "the next clip is another one"
    assert page.inner_text("#summary") == f"seed {drawn}"
    page.fill("#prompt", "another ball")
    page.click("summary")
    page.fill("#seed", "5")
    page.click("#submit")
    until(page, f"{DONE} && caption.textContent === 'another ball'")
    assert page.input_value("#seed") == "5", "a chosen seed stays"


def test_a_key_is_asked_for_survives_a_reload_and_plays(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serving(tmp_path, api_keys=("a-long-key",)) as server:
        page = open_page(server.url)
        page.wait_for_selector("#key", state="visible")
        assert page.inner_text("#problem") == "This server asks for an API key."
        page.fill("#key", "a-long-key")
        page.keyboard.press("Tab")
        until(page, "model.textContent === 'h3-tiny'")
        make(page, "a ball", outputs="2")
        until(page, DONE)
        until(page, "[...document.querySelectorAll('#frames video')].map(v => v.videoWidth).join() === '112,112'")
        page.reload()
        until(page, DONE)
        until(page, "document.querySelector('#frames video')?.videoWidth === 112")
        assert page.is_hidden("#key-row")
        until(page, "document.querySelector('#jobs img').naturalWidth === 112")
        with page.expect_download() as download:
            page.click("figure:nth-of-type(2) .download")
        assert download.value.suggested_filename.endswith("-1.mp4")


def test_the_page_works_below_a_path(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serving(tmp_path, root_path="/tools/clips") as server:
        page = open_page(f"{server.url}/tools/clips/")
        answers: list[tuple[str, int]] = []
        page.on("response", lambda answer: answers.append((answer.url.removeprefix(server.url), answer.status)))
        make(page, "a ball")
        until(page, DONE)
        until(page, "document.querySelector('#frames video')?.videoWidth === 112")
        until(page, "document.querySelector('#jobs img').naturalWidth === 112")
        sent = [(url, status) for url, status in answers if not url.startswith(("data:", "blob:"))]
        assert all(url.startswith("/tools/clips/") and status in (200, 206) for url, status in sent), sent
