"""Every command that the documents show can be typed as it stands: its flags exist and its values are taken."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from talkies.cli import app, generate, serve
from talkies.request import VideoRequest
from tests.server.fakes import FakeService

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("training/*.md")]


def commands():
    """Lines of fenced blocks that begin with ``talkies``, without the remark that two spaces set apart."""
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                if line.startswith("talkies "):
                    yield re.split(r"\s{2,}", line)[0]


COMMANDS = list(dict.fromkeys(commands()))


def test_there_are_commands_to_try():
    assert len(COMMANDS) > 15
    assert {line.split()[1] for line in COMMANDS} >= {"generate", "inspect", "plan", "doctor", "serve", "jobs"}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_documents_is_taken(line, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("TALKIES_", "VLLM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line)[1:]
    ran = []
    if arguments[0] == "generate":
        monkeypatch.setattr(generate, "repeated", lambda path, **_: VideoRequest(prompt="a ball"))
        (tmp_path / "prompts.txt").write_text("a ball\n")
        for maker in ("make", "make_all"):
            monkeypatch.setattr(generate, maker, lambda *args, **_: ran.append(args))
    elif arguments[0] == "serve":
        monkeypatch.setattr(serve, "_build", lambda engine, **_: serve.engine_config(engine) and FakeService())
        monkeypatch.setattr(
            serve, "_run", lambda service, _, listener, begun: ran.append((service(), listener.close()))
        )
        monkeypatch.setattr("talkies.server.logs.configure", lambda **_: None)
        arguments += ["--port", "0", "--data-dir", str(tmp_path / "data")]
    else:
        ran.append(arguments[0])
        if "--gpu" not in arguments:  # a described one is planned for anywhere; others need files, servers or a GPU
            arguments.append("--help")  # which is heard only when all else was understood
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    assert ran


@pytest.mark.slow
def test_the_table_of_plans_is_the_planners():
    done = subprocess.run([sys.executable, ROOT / "docs" / "plans.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "python docs/plans.py writes it anew"
