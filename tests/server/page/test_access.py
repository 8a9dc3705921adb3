"""For ears and keyboards: names of controls as Chromium computes them, what is said, where the focus is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.conftest import Server
from tests.server.page.chromium import until
from tests.server.page.conftest import Permits
from tests.server.page.test_references import picture
from tests.server.page.test_stage import DONE, READY, make

CONTROLS = {"button", "textbox", "searchbox", "combobox", "spinbutton", "link", "progressbar", "image", "Video", "list"}


def tree(page: Any) -> list[tuple[str, str]]:
    """(role, name) of what a screen reader meets."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in CONTROLS
    ]


def test_every_control_has_a_name(open_page: Callable[..., Any], stepped: tuple[Server, Permits]) -> None:
    server, permits = stepped
    server.wait(server.create("a dull ball")["id"])
    page = open_page(server.url)
    until(page, READY)
    page.set_input_files("#files", files=[picture("red"), picture("blue")])
    page.evaluate("document.querySelector('#advanced').open = true")
    make(page, "slow ball", outputs="2")
    permits.allow(1)
    until(page, "document.querySelector('#frames img')?.naturalWidth === 28")
    running = tree(page)
    assert [entry for entry in running if not entry[1] and entry[0] != "list"] == []
    assert ("image", "Preview of clip 1 of 2") in running
    assert ("progressbar", "Progress of the clip") in running
    permits.allow(9)
    until(page, DONE)
    until(page, "document.querySelectorAll('#frames video').length === 2")
    done = tree(page)
    assert [entry for entry in done if not entry[1] and entry[0] != "list"] == []
    names = {name for _, name in done}
    assert {"Download clip 2 of 2", "Move red.png later", "Role of blue.png", "Show: slow ball", "Favourite"} <= names
    assert page.evaluate("[...document.querySelectorAll('label')].every(label => label.control)")


def test_progress_is_said_now_and_then(open_page: Callable[..., Any], stepped: tuple[Server, Permits]) -> None:
    server, permits = stepped
    page = open_page(server.url)
    page.evaluate(
        """() => {
          window.said = [];
          const watch = new MutationObserver(() => said.push(spoken.textContent));
          watch.observe(spoken, { childList: true, characterData: true, subtree: true });
        }"""
    )
    make(page, "slow ball")
    until(page, "stage.dataset.phase === 'running'")
    for step in range(1, 5):
        permits.allow(1)
        until(page, f"state.textContent.includes('step {step} of 5')")
    permits.allow(1)
    until(page, DONE)
    until(page, "said.at(-1).startsWith('Finished')")
    said = page.evaluate("said")
    assert any("Making picture and sound" in text and "percent" in text for text in said)
    assert len(said) <= 9, said
    assert page.get_attribute("#spoken", "aria-live") == "polite"
    assert page.get_attribute("#problem", "role") == "alert"


def test_the_focus_is_seen_on_everything_that_takes_it(open_page: Callable[..., Any], server: Server) -> None:
    server.wait(server.create("a dull ball")["id"])
    page = open_page(server.url)
    until(page, f"{READY} && {DONE}")
    until(page, "document.querySelector('#frames video')")
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, width = page.evaluate(
            """() => {
              const node = document.activeElement;
              const shown = node.id === "files" ? node.previousElementSibling : node;
              return [node.id || node.className || node.tagName, parseFloat(getComputedStyle(shown).outlineWidth)];
            }"""
        )
        if name == "BODY":
            break
        reached.append(name)
        assert name == "VIDEO" or width >= 2, name
    wanted = {
        "again",
        "curl",
        "python",
        "delete",
        "prompt",
        "files",
        "aspect",
        "seconds",
        "outputs",
        "submit",
        "search",
    }
    assert wanted | {"open", "star", "download", "only"} <= set(reached)
