"""Making a clip once more: on the page with its files, and elsewhere with the copied lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server.conftest import Server, serving
from tests.server.page.chromium import until
from tests.server.page.test_references import picture, received
from tests.server.page.test_stage import DONE, READY, make

PROMPT = 'it\'s a "red" ball\nand $HOME `ls` \\ <Picture 1> @x'


def settings(server: Server) -> dict[str, Any]:
    """Of the last job that the engine got, without its files."""
    request = list(server.service.jobs.values())[-1].request.to_dict()
    request["conditions"] = [(c["kind"], c["role"]) for c in request["conditions"]]
    return request


def test_again_brings_everything_back_even_after_a_reload(open_page: Callable[..., Any], server: Server) -> None:
    jobs = received(server)
    page = open_page(server.url)
    until(page, READY)
    page.set_input_files("#files", files=[picture("red"), picture("blue")])
    page.select_option("#aspect", "1:1")
    make(page, PROMPT, seconds="2,5", steps="7", seed="5", shift="3.5", outputs="2")
    until(page, DONE)
    first = settings(server)
    assert (first["prompt"], first["target"]["seconds"]) == (PROMPT, 2.5)
    page.reload()
    until(page, READY)
    until(page, DONE)
    page.click("#again")
    until(page, "document.querySelectorAll('#references img').length === 2")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelectorAll('#jobs > li').length === 2")
    until(page, DONE)
    assert len(server.service.jobs) == 2
    assert settings(server) == first
    assert jobs == [[("first", "red"), ("last", "blue")]] * 2


def test_again_of_a_job_from_elsewhere(open_page: Callable[..., Any], server: Server) -> None:
    job = server.create("a ball", seed=-(2**63), aspect_ratio="9:16", num_frames=124, num_inference_steps=9, n=2)
    server.wait(job["id"])
    page = open_page(server.url)
    until(page, f"{READY} && {DONE}")
    page.click("#again")
    until(page, "document.activeElement.id === 'prompt'")
    assert page.input_value("#seed") == str(-(2**63))
    assert page.input_value("#aspect") == "9:16"
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelectorAll('#jobs > li').length === 2 || problem.textContent")
    assert page.inner_text("#problem") == "", "a job's own seconds are accepted"
    mine = server.http.get("/v1/videos?limit=1").json()["data"][0]
    for name in ("prompt", "seed", "size", "seconds", "num_inference_steps", "num_outputs"):
        assert mine[name] == job[name], name


def test_references_of_another_browser_are_asked_for(open_page: Callable[..., Any], server: Server, png: Path) -> None:
    made = server.http.post("/v1/videos", data={"prompt": "a ball"}, files={"input_reference": png.open("rb")}).json()
    server.wait(made["id"])
    page = open_page(server.url)
    until(page, f"{READY} && {DONE}")
    page.click("#again")
    until(page, "task.textContent.includes('add them again')")


def copied(page: Any, button: str) -> str:
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click(button)
    until(page, f"document.querySelector('{button}').textContent === 'Copied'")
    return page.evaluate("window.copied")


def test_the_copied_lines_make_the_same_clip(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serving(tmp_path / "data", api_keys=("a-long-key",)) as server:
        jobs = received(server)
        page = open_page(server.url)
        page.fill("#key", "a-long-key")
        page.keyboard.press("Tab")
        until(page, f"{READY} && model.textContent")
        blue = picture("blue")
        blue["name"] = """it's "blue", x;y.png"""
        page.set_input_files("#files", files=[picture("red"), blue])
        page.select_option("#references li:nth-child(1) select", "last")
        make(page, PROMPT, seed="5", seconds="2")
        until(page, DONE)
        first = settings(server)
        for file in (picture("red"), blue):
            (tmp_path / file["name"]).write_bytes(file["buffer"])
        env = {**os.environ, "TALKIES_API_KEY": "a-long-key", "NO_PROXY": "127.0.0.1"}
        commands = {"#curl": ["bash", "-c"], "#python": [sys.executable, "-c"]}
        for number, (button, run) in enumerate(commands.items(), 2):
            text = copied(page, button)
            assert "a-long-key" not in text
            subprocess.run([*run, text], cwd=tmp_path, env=env, check=True, timeout=60, capture_output=True)
            assert len(server.service.jobs) == number
            assert settings(server) == first, text
        assert jobs == [[("first", "blue"), ("last", "red")]] * 3
        assert (tmp_path / "clip-0.mp4").stat().st_size > 1000  # the Python lines waited for it
