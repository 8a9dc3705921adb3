"""docs/limits.md says what the code does: a number that changes in one of them alone is found here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "limits.md"
ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<limit>[\d.]+) \| `(?P<module>[\w.]+)\.(?P<name>\w+)` \|$", re.MULTILINE)
ROWS = [match.groupdict() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def test_every_line_of_the_table_is_read():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(ROWS) == len(lines) - 2 > 25  # the head and the line under it


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_page_has_the_number_of_the_code(row):
    assert getattr(importlib.import_module(row["module"]), row["name"]) == float(row["limit"])
