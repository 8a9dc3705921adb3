"""Draws docs/img/page-*.png anew: the page over the embedded checkpoint, in Chromium.

python -m tests.server.page.screenshots [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from PIL import Image

from talkies.engine.config import EngineConfig
from talkies.engine.service.executor import Executor
from talkies.server.app import HttpServer, create_app
from talkies.server.config import ServerConfig
from tests.server.page.chromium import DESK, PHONE, chromium, until

DONE = "document.querySelector('#stage').dataset.phase === 'done'"
PLAYABLE = "[...document.querySelectorAll('#frames video')].every((video) => video.readyState >= 2)"
AT_REST = "[...document.querySelectorAll('#frames video')].every((video) => video.paused)"
PREVIEWED = "document.querySelector('#frames img')?.naturalWidth > 0"
MAX_COLOURS = 256  # a palette keeps each file under 150 kB
PROMPTS = (
    "a yellow triangle slides right slowly on a white background with a beep",
    "a blue square bounces quickly on a dark background with a drum sound",
    "a green ball slides left slowly on a dark background with a bell sound",
)
RED_BALL = "a red ball bounces slowly on a dark background with a bell sound"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        executor = Executor(EngineConfig(threads=1))
        server = HttpServer(create_app(executor, ServerConfig(data_dir=Path(data))), host="127.0.0.1", port=0)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
            _desk(browser, url, folder)
            _phone(browser, url, folder)
        finally:
            server.should_exit = True
            thread.join(20)


def _desk(browser: Any, url: str, folder: Path) -> None:
    page = browser.new_context(viewport=DESK, color_scheme="light").new_page()
    page.goto(url)
    until(page, "document.querySelector('#frames .title').textContent.includes('loading')")
    _shoot(page, folder / "page-loading.png")
    until(page, "!document.querySelector('#submit').disabled", timeout_s=120)
    _shoot(page, folder / "page-empty.png")
    for prompt in PROMPTS:
        _make(page, prompt)
        until(page, f"{DONE} && {PLAYABLE}", timeout_s=60)
    _make(page, RED_BALL, steps="160")
    until(page, PREVIEWED, timeout_s=60)
    _shoot(page, folder / "page-running.png")
    until(page, DONE, timeout_s=120)
    _make(page, "an orange ball slides right slowly on a white background with a bell sound", outputs="3")
    until(page, f"{DONE} && {PLAYABLE}", timeout_s=120)
    until(page, AT_REST, timeout_s=60)
    page.click("#stage .star")
    _shoot(page, folder / "page-three.png")
    page.set_input_files("#files", files=[{"name": "holiday.png", "mimeType": "image/png", "buffer": b"no picture"}])
    _make(page, "the ball keeps bouncing")
    until(page, "document.querySelector('#problem').textContent")
    _shoot(page, folder / "page-error.png")


def _phone(browser: Any, url: str, folder: Path) -> None:
    page = browser.new_context(viewport=PHONE, color_scheme="dark", has_touch=True, is_mobile=True).new_page()
    page.goto(url)
    until(page, f"{DONE} && {PLAYABLE}", timeout_s=60)
    _make(page, RED_BALL, steps="120")
    until(page, f"{DONE} && {PLAYABLE}", timeout_s=120)
    until(page, AT_REST, timeout_s=60)
    _shoot(page, folder / "page-phone.png")


def _make(page: Any, prompt: str, *, steps: str = "", outputs: str = "1") -> None:
    page.fill("#prompt", prompt)
    page.fill("#outputs", outputs)
    page.evaluate("document.querySelector('#advanced').open = true")
    page.fill("#steps", steps)
    page.evaluate("document.querySelector('#advanced').open = false")
    old = page.get_attribute("#jobs > li", "id") if page.query_selector("#jobs > li") else None
    page.click("#submit")
    until(
        page,
        f"document.querySelector('#jobs > li')?.id !== {old!r} || problem.textContent".replace("None", "undefined"),
    )


def _shoot(page: Any, path: Path) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(400)  # fonts, pictures, transitions
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(MAX_COLOURS).save(path, optimize=True)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3] / "docs" / "img")
