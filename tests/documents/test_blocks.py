"""Every block of code of the documents is run, or says why it is not; those are read for what is not there.

Blocks of a page are one program, in their order. Lines that set up an environment or start a server are left out where
the rest of a page is run: the tests run in such an environment, with a server.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import wave
from pathlib import Path

import pytest

from talkies import Engine, VideoRequest
from tests.documents.blocks import ROOT, blocks, commands, every_block

yaml = pytest.importorskip("yaml")  # transformers brings it
SHELL = ("sh", "bash")
SLOW = pytest.mark.slow
LEFT_OUT = re.compile(r"(make |\. \.venv/|talkies serve\b|talkies jobs\b|talkies doctor\b)")
ADDRESS = "http://127.0.0.1:8000"


def pages(*languages):
    return list(dict.fromkeys(block.page for block in blocks(*languages) if not block.not_run))


def test_there_are_blocks_to_run():
    assert len(blocks("python")) > 8
    assert len(blocks(*SHELL)) > 25
    assert {"README.md", "docs/guides/python.md", "docs/start/tutorial.md"} <= set(pages("python"))
    assert {"README.md", "docs/guides/http.md", "docs/commands.md"} <= set(pages(*SHELL))


@pytest.mark.parametrize("block", blocks("json", "toml", "yaml", "ini", "python"), ids=str)
def test_a_block_is_of_its_language(block):
    match block.language:
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)
        case "ini":
            assert all(re.fullmatch(r"\w+=\S.*", line) for line in block.text.splitlines())
        case "python":
            compile(block.text, block.page, "exec")


@pytest.mark.parametrize("block", blocks("js"), ids=str)
def test_a_block_for_node_can_be_read(block, tmp_path):
    node = shutil.which("node") or pytest.skip("node is not installed here")
    (tmp_path / "block.mjs").write_text(block.text)
    done = subprocess.run([node, "--check", tmp_path / "block.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_block_is_of_a_language_that_nobody_reads():
    known = {"", "text", "json", "toml", "yaml", "ini", "python", "js", *SHELL}
    assert {block.language for block in every_block()} <= known


@pytest.mark.parametrize("line", dict.fromkeys(line for block in blocks(*SHELL) for line in commands(block)))
def test_what_a_command_names_is_there(line):
    """Of ``talkies`` lines tests/cli/test_docs.py asks the flags; here it is targets, scripts, modules and extras."""
    subprocess.run(["bash", "-n", "-c", line], check=True)
    words = shlex.split(line, comments=True)
    match [word for word in words if word != "sudo" and not re.match(r"\w+=", word)]:
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python" | "python3" | "torchrun", *rest] if "-m" in rest and "venv" not in rest:
            module = rest[rest.index("-m") + 1]
            path = ROOT / module.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").exists()
        case ["python" | "python3" | "sh", script, *_] if not script.startswith("-"):
            assert (ROOT / script).exists()
        case ["docker", "build", "-f", file, *_]:
            assert (ROOT / file).exists()
        case ["install", *rest]:
            assert (ROOT / rest[-2]).exists()
        case [program, *_]:
            known = {
                "talkies",
                "curl",
                "python3",
                "docker",
                "systemctl",
                "useradd",
                ".",
                "pip",
                "/opt/talkies/bin/pip",
                ".venv/bin/pip",
            }
            assert program in known or line.startswith("id=$(curl")


@pytest.fixture
def place(tmp_path, monkeypatch, embedded_engine):
    """A folder with the files that pages speak of, and an ``Engine.open`` that gives the suite's one engine."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engine, "open", lambda *_, **__: embedded_engine)
    Image.new("RGB", (112, 64), "black").save("start.png")
    Path("examples").symlink_to(ROOT / "examples")
    Path("prompts.txt").write_text("a red ball flashes\n\n# a comment\na blue square slides left\n")
    with wave.open("drums.wav", "wb") as file:
        file.setparams((2, 2, 32_000, 0, "NONE", ""))
        file.writeframes(bytes(4 * 32_000 * 4))
    return tmp_path


@SLOW
@pytest.mark.parametrize("page", [page for page in pages("python") if "http" not in page])
def test_python_of_a_page_runs(page, place):
    program = "\n".join(block.text for block in blocks("python") if block.page == page and not block.not_run)
    exec(compile(program, page, "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.server.test_real_engine import running

    with running(Path("h3-tiny"), tmp_path_factory.mktemp("data")) as (client, _):
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def shell(place, server, embedded_engine):
    """Runs a script in which ``talkies`` is this tree's, and the documents' address is the server's."""
    embedded_engine.generate(VideoRequest(prompt="a red ball bounces slowly with a bell sound")).save("film.mp4")
    Path("demo.mp4").write_bytes(Path("film.mp4").read_bytes())
    programs = place / "bin"
    programs.mkdir()
    talkies = programs / "talkies"
    talkies.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m talkies "$@"\n')
    talkies.chmod(0o755)
    env = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TALKIES_URL": server}

    def run(script):
        script = "set -euo pipefail\n" + script.replace(ADDRESS, server)
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)

    return run


@SLOW
@pytest.mark.parametrize("page", pages(*SHELL))
def test_commands_of_a_page_run(page, shell):
    own = [line for block in blocks(*SHELL) if block.page == page and not block.not_run for line in commands(block)]
    script = "\n".join(line for line in own if not LEFT_OUT.match(line))
    done = shell(script)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in re.findall(r"-o (\w+\.\w+)", script):
        head = Path(name).read_bytes()[:12]
        assert head[4:8] == b"ftyp" if name.endswith(".mp4") else head, f"{name}: {head!r}"


@SLOW
def test_python_over_http_runs(place, server):
    pytest.importorskip("openai")
    own = [block.text for block in blocks("python") if block.page == "docs/guides/http.md" and not block.not_run]
    assert own
    exec(compile("\n".join(own).replace(ADDRESS, server), "docs/guides/http.md", "exec"), {"__name__": "__main__"})
    assert Path("square.mp4").stat().st_size > 0
