"""What people do at a command line: twice the same option, a script that reads JSON, a look around."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from talkies.cli import app


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
