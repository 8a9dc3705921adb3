"""CONTRIBUTING.md sends nobody to a file or a command that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted({p for p in re.findall(r"`([\w./-]+)`", PAGE) if "/" in p and "NAME" not in p})
TARGETS = sorted(set(re.findall(r"\bmake ([a-z-]+)", PAGE)))


@pytest.mark.parametrize("path", PATHS)
def test_its_paths_exist(path):
    assert (ROOT / path).exists() or (ROOT / "src" / "talkies" / path).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_its_commands_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_there_is_something_to_check():
    assert len(PATHS) > 15
    assert {"check", "test", "gpu", "parity", "bench"} <= set(TARGETS)
