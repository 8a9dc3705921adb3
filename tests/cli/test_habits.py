"""What people do at a command line: twice the same option, a script that reads JSON, a look around."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
from typer.testing import CliRunner

from talkies.cli import app
from talkies.cli.clips.bar import Bar
from talkies.engine.events import Progress
from talkies.server import logs


def run(*words):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("generate", "a ball", "--seed", "1", "--seed", "2"), "--seed"),
        (("generate", "a ball", "-o", "a.mp4", "--output=b.mp4"), "--output"),
        (("plan", "--gpu", "h200", "--gpu", "4090"), "--gpu"),
        (("generate", "a ball", "--vram-budget", "1GiB", "--vram-budget", "2GiB"), "--vram-budget"),
    ],
)
def test_of_two_values_of_an_option_none_wins_without_a_word(words, option):
    result = run(*words)
    assert result.exit_code == 2
    assert f"{option} is given 2 times" in " ".join(result.output.replace("│", " ").split())


def test_an_option_that_is_repeatable_and_a_flag_may_come_twice():
    result = run("generate", "a ball", "--reference", "no.png", "--reference", "no.wav", "--no-audio", "--no-audio")
    assert "times" not in result.output
    assert result.exit_code == 2  # there is no such file


@pytest.mark.parametrize("words", [("generate", "x", "--steps", "1"), ("plan", "--gpu", "abacus")])
def test_under_json_a_refusal_is_an_object_too(words):
    result = run(*words, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout.splitlines()[-1])["error"]
    assert error.keys() == {"message", "hint", "param", "code"}
    assert error["message"] in result.stderr
    assert result.stderr.startswith("error: ")
    assert run(*words).stdout == ""


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag):
    import talkies

    assert run(flag).stdout == f"talkies {talkies.__version__}\n"


def test_what_the_package_exports_can_be_seen():
    import talkies

    assert set(talkies.__all__) <= set(dir(talkies))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_line_stands_above_the_progress_bar(monkeypatch):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    try:
        logs.configure(level="info", as_json=False)
        with Bar(num_clips=2, quiet=False) as bar:
            bar.clip_done()
            bar.on_progress(Progress(stage="denoise", step=1, num_steps=4, fraction=0.5))
            assert bar._bar.tasks[0].percentage == 75.0
            assert bar._bar.tasks[0].fields["detail"] == "clip 2 of 2, 1/4"
            assert sys.stderr is not terminal  # what is written to it now moves the bar down
            written = []
            monkeypatch.setattr(type(sys.stderr), "write", lambda _, text: written.append(text) or len(text))
            logging.getLogger("talkies").warning("a streamed block was late")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert "a streamed block was late" in "".join(written)


def test_quiet_says_nothing(monkeypatch, capsys):
    with Bar(num_clips=1, quiet=True) as bar:
        bar.stage("loading")
        bar.clips([], ["it is silent"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow  # a server starts and ends
def test_a_start_that_fails_ends_with_its_own_error_and_code(tmp_path, monkeypatch):
    monkeypatch.setenv("TALKIES_DATA_DIR", str(tmp_path))
    done = run("serve", "--port", "0", "--device", "cpu", "--vram-budget", "4GiB")
    assert done.exit_code == 2
    assert "error: --vram-budget has no meaning on a CPU (use --ram-budget, or --device cuda)" in done.stderr
