"""Folders that a reader can take in at a glance, and no circle of imports in what import-linter does not look at."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 18


@pytest.mark.parametrize("top", ["src", "bench", "training", "tests"])
def test_no_folder_holds_too_many_files(top):
    counts = Counter(path.parent.relative_to(ROOT) for path in (ROOT / top).rglob("*.py"))
    assert counts, f"nothing found under {top}"
    assert {str(folder): n for folder, n in counts.items() if n > MOST_FILES} == {}


@pytest.mark.parametrize("package", ["bench", "training"])
@pytest.mark.parametrize("depth", [2, 9], ids=["folders", "files"])
def test_imports_go_one_way(package, depth):
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert any(arrows.values())

    def room(module):
        return ".".join(module.split(".")[:depth])

    sorter = TopologicalSorter()
    for module, imported in arrows.items():
        sorter.add(room(module), *(room(other) for other in imported if room(other) != room(module)))
    sorter.prepare()  # CycleError names the circle
