"""Deleting can be undone for a while, and is sent in any case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.conftest import Server
from tests.server.page.chromium import until
from tests.server.page.test_stage import DONE, READY

GONE = "document.querySelectorAll('#jobs > li').length === 0"


def with_a_clip(open_page: Callable[..., Any], server: Server) -> tuple[Any, str]:
    job = server.create("a ball")
    server.wait(job["id"])
    page = open_page("about:blank")
    page.clock.install()
    page.goto(server.url)
    until(page, f"{READY} && {DONE}")
    return page, f"/v1/videos/{job['id']}"


def test_a_deletion_is_undone(open_page: Callable[..., Any], server: Server) -> None:
    page, path = with_a_clip(open_page, server)
    page.click("#delete")
    until(page, GONE)
    assert page.evaluate("stage.dataset.phase") == "empty"
    assert page.evaluate("document.activeElement.textContent") == "Undo", "a keyboard is one key from the way back"
    page.clock.run_for(5000)  # polls of the list must not bring it back
    assert page.evaluate(GONE)
    page.keyboard.press("Enter")
    until(page, f"!({GONE}) && {DONE}")
    page.clock.run_for(20_000)
    assert server.http.get(path).status_code == 200


def test_a_deletion_is_sent_after_the_offer(open_page: Callable[..., Any], server: Server) -> None:
    page, path = with_a_clip(open_page, server)
    page.click("#jobs .delete")
    until(page, GONE)
    assert server.http.get(path).status_code == 200
    with page.expect_response(lambda answer: answer.request.method == "DELETE"):
        page.clock.run_for(8000)
    assert server.http.get(path).status_code == 404
    until(page, "toast.hidden")
    assert page.evaluate("document.activeElement.id") == "history-title"


def test_a_deletion_is_sent_when_the_page_is_left(open_page: Callable[..., Any], server: Server) -> None:
    page, path = with_a_clip(open_page, server)
    page.click("#delete")
    until(page, GONE)
    page.goto("about:blank")
    for _ in range(200):
        if server.http.get(path).status_code == 404:
            return
        page.wait_for_timeout(25)
    raise AssertionError("the clip is still there")


def test_the_next_deletion_makes_the_last_one_final(open_page: Callable[..., Any], server: Server) -> None:
    other = server.create("another ball")
    server.wait(other["id"])
    page, path = with_a_clip(open_page, server)
    page.click("#jobs > li:nth-child(1) .delete")
    with page.expect_response(lambda answer: answer.request.method == "DELETE"):
        page.click("#jobs .delete")
    assert server.http.get(path).status_code == 404
    page.click("text=Undo")
    until(page, "document.querySelectorAll('#jobs > li').length === 1")
    assert page.get_attribute("#jobs > li", "id") == other["id"]


def test_a_deletion_that_the_server_refuses_brings_the_clip_back(open_page: Callable[..., Any], server: Server) -> None:
    page, _ = with_a_clip(open_page, server)
    page.route("**/v1/videos/*", lambda route: route.fulfill(status=500, json={"error": {"message": "disk is full"}}))
    page.click("#delete")
    until(page, GONE)
    page.clock.run_for(8000)
    until(page, f"!({GONE})")
    assert page.inner_text("#problem") == "Disk is full."
