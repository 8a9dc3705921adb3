"""`make docs`: links out of docs/ lead to the repository, pages of its root are pages, and a dead link ends it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT = "mkdocs-material is not installed here: pip install '.[docs]'"
pytest.importorskip("mkdocs", reason=WITHOUT)


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("docs/api.md#errors", "README.md", "index.md", "api.md#errors"),
        ("../README.md", "docs/questions.md", "questions.md", "index.md"),
        ("../../SECURITY.md", "docs/start/install.md", "start/install.md", "../security.md"),
        ("../bench/results", "docs/status.md", "status.md", "https://host/us/tree/main/bench/results"),
        ("docs/img/clip.py", "README.md", "index.md", "https://host/us/blob/main/docs/img/clip.py"),
        ("#here", "docs/api.md", "api.md", "#here"),
        ("https://host", "docs/api.md", "api.md", "https://host"),
    ],
)
def test_a_link_is_that_of_the_site(hooks, link, source, page, expected):
    assert hooks.rewritten(link, source, page, "https://host/us") == expected


def test_a_link_that_leads_nowhere_is_a_warning(hooks, caplog):
    assert hooks.rewritten("../none.py", "docs/api.md", "api.md", "https://host/us") == "../none.py"
    assert "leads nowhere" in caplog.text


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("material", reason=WITHOUT)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    assert (tmp_path / "index.html").read_text().count("img/clip.png")
