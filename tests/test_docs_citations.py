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


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]


def anchors(path):
    names = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if file.startswith("http"):
            continue
        there = path.parent / file if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_page_has_a_place_in_the_site():
    """mkdocs names a page that no menu has, but only where mkdocs is installed."""
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", site, re.MULTILINE))
    own = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert own - listed == set()
    assert listed - own == {"index.md", "contributing.md", "security.md", "changelog.md"}


def test_thirty_questions_have_a_page_each():
    rows = re.findall(
        r"^\| ([^|]+\?) \| ([^|]+\.) \| \[[^\]]+\]\([^)]+\) \|$", (ROOT / "docs/questions.md").read_text(), re.M
    )
    assert len({question for question, _ in rows}) == 30
    assert [answer for _, answer in rows if len(answer.split()) > 35 or ". " in answer] == []
