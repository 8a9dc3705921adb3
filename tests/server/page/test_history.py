"""All clips: search through pages of them, favourites, the way to the stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.conftest import Server
from tests.server.page.chromium import until
from tests.server.page.test_stage import DONE, READY

VISIBLE = "[...document.querySelectorAll('#jobs > li:not([hidden]) .prompt')].map(node => node.textContent)"


def test_search_looks_through_older_pages(open_page: Callable[..., Any], server: Server) -> None:
    for prompt in ["a RED ball slides", *["a dull ball"] * 24, "a blue ball"]:
        job = server.create(prompt)
    server.wait(job["id"])
    page = open_page(server.url)
    until(page, "document.querySelectorAll('#jobs > li').length === 20")
    page.click("#more")
    until(page, "document.querySelectorAll('#jobs > li').length === 26")
    assert not page.is_visible("#more")
    page.reload()
    until(page, "document.querySelectorAll('#jobs > li').length === 20")
    page.fill("#search", "slides red")
    until(page, f"JSON.stringify({VISIBLE}) === JSON.stringify(['a RED ball slides'])")
    page.click("#jobs > li:not([hidden]) .open")
    until(page, f"{DONE} && caption.textContent === 'a RED ball slides'")
    page.fill("#search", "no such clip")
    until(page, f"{VISIBLE}.length === 0")
    assert page.inner_text("#none") == "No clip fits."


def test_favourites_survive_a_reload(open_page: Callable[..., Any], server: Server) -> None:
    first = server.create("the first ball")
    for _ in range(21):
        last = server.create("a dull ball")
    server.wait(last["id"])
    page = open_page(server.url)
    until(page, f"{READY} && document.querySelectorAll('#jobs > li').length === 20")
    page.click("#more")
    page.click(f"#{first['id']} .open")
    until(page, "caption.textContent === 'the first ball'")
    page.click("#stage .star")
    assert page.get_attribute(f"#{first['id']} .star", "aria-pressed") == "true"
    page.reload()
    until(page, "document.querySelectorAll('#jobs > li').length === 20")
    page.click("#only")
    until(page, f"JSON.stringify({VISIBLE}) === JSON.stringify(['the first ball'])")
    page.click(f"#{first['id']} .star")
    until(page, f"{VISIBLE}.length === 0")
    page.click("#only")
    until(page, f"{VISIBLE}.length === 21")
