"""What comments cite can be looked up: a page of docs and a heading in it, and nothing that a reader does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("src", "bench", "training", "tests") for path in sorted((ROOT / top).rglob("*.py"))]
CITED = re.compile(r"docs/([\w-]+\.md), +(?=[A-Z])")
ELSEWHERE = re.compile(
    r"\bspec(ification)? (section|\d)|\bcontract (section )?\d|\(section \d|\bsections? \d+(\.\d+)?\b", re.I
)


def text_of(path):
    """Comments and docstrings as running text."""
    return re.sub(r"\s*\n\s*(#\s*)?", " ", path.read_text(encoding="utf-8"))


def headings(page):
    return re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)


def citations():
    """(where, page, what follows) of each citation."""
    for path in SOURCES:
        text = text_of(path)
        for match in CITED.finditer(text):
            yield str(path.relative_to(ROOT)), match[1], text[match.end() : match.end() + 80]


def test_every_heading_that_is_cited_exists():
    found = list(citations())
    assert len(found) > 15
    lost = [
        (where, page, words) for where, page, words in found if not any(words.startswith(h) for h in headings(page))
    ]
    assert lost == []


@pytest.mark.parametrize("page", ["model.md", "api.md"])
def test_the_pages_are_cited_at_all(page):
    assert page in {cited for _, cited, _ in citations()}


def test_nothing_is_cited_that_is_not_here():
    here = Path(__file__)
    lost = [(str(p.relative_to(ROOT)), m[0]) for p in SOURCES if p != here for m in [ELSEWHERE.search(text_of(p))] if m]
    assert lost == []


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings(page)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or file.startswith("http") or (ROOT / "docs" / file).exists(), target
        assert file or anchor in anchors, target
