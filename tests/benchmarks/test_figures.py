"""A figure is called stale when its code has changed since, and only then; a failed check leaves no figure."""

from __future__ import annotations

import json
import subprocess

import pytest

from bench import figures, precision, scheduling


@pytest.fixture
def repository(tmp_path):
    """A repository of one commit with a file that ``load`` rests on and one that it does not."""

    def git(*words):
        done = subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *words],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    for name in ("bench/load.py", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    return tmp_path, git("rev-parse", "--short", "HEAD")


def _result(commit, **shape):
    head = {"bench": "load", "date": "2026-01-02", "torch": "2.11", "metrics": {}, "peer": {}, "checks": {"good": True}}
    return head | {"commit": commit, "shape": shape}


def test_a_figure_is_stale_once_its_code_has_changed(repository, capsys):
    root, commit = repository
    results = root / "results"
    results.mkdir()
    (results / "load-cpu.json").write_text(json.dumps(_result(commit)))
    options = ["--results", str(results), "--root", str(root), "--check"]
    (root / "README.md").write_text("b\n")
    assert figures.main(options) == 0
    (root / "bench/load.py").write_text("b\n")
    assert figures.main(options) == 1
    assert f"load-cpu.json: {commit}: code that it rests on has changed" in capsys.readouterr().err
    assert figures.main(options[:-1]) == 0
    assert (
        f"| nothing lost, nothing twice | load-cpu.json | {commit} | 2026-01-02 | 2.11 | - | 1 hold |"
        in capsys.readouterr().out
    )


def test_files_of_no_commit_are_stale(repository):
    root, commit = repository
    assert figures.stale(_result(commit), root) is None
    assert "no commit holds" in figures.stale(_result(f"{commit}+"), root)
    assert "unknown to git" in figures.stale(_result("0123456"), root)
    parts = {"rates": f"0123456, {commit}", "bf16": "0123456"}  # the newest of a part is last
    assert figures.stale(_result(commit, commits=parts), root) == "0123456: unknown to git"


def test_every_result_file_says_what_it_rests_on():
    for path in figures.RESULTS.glob("*.json"):
        if "details" not in path.name:
            assert json.loads(path.read_text())["bench"] in figures.RESTS_ON
    root = figures.Path(figures.__file__).parents[1]
    for paths in figures.RESTS_ON.values():
        assert [path for path in paths if not (root / path).exists()] == []


def test_the_table_of_the_page_is_that_of_the_files():
    page = (figures.Path(figures.__file__).parents[1] / "docs" / "performance.md").read_text()
    found = page.partition(figures.BEGIN)[2].partition(figures.END)[0].strip()
    assert found == figures.table(figures.result_files(figures.RESULTS)), (
        "python -m bench.figures --write docs/performance.md"
    )


def test_a_precision_is_judged_by_what_a_seed_moves():
    seed = [dict.fromkeys(precision.MEASURES, value) | {"psnr_db": 40.0} for value in (0.1, 0.2, 0.3)]
    near = [dict.fromkeys(precision.MEASURES, value) | {"psnr_db": 60.0} for value in (0.01, 0.1, 0.5)]
    metrics, checks = precision.summary("list", near, seed)
    assert all(checks.values())
    assert len(checks) == len(precision.MEASURES)
    assert metrics["list_logmel_db_share_of_a_seed"] == pytest.approx(0.5)
    assert metrics["list_worst_logmel_db"] == 0.5
    assert not any(precision.summary("list", seed, near)[1].values())


def test_a_policys_price_stands_beside_its_gain():
    def run(short, every):
        return {"short_p95_s": short, "mean_s": 1.0, "p95_s": every, "total_s": 9.0}

    found = {"fifo": [run(4, 4), run(6, 6)], "shortest-remaining": [run(1, 6), run(3, 9)]}
    metrics, checks = scheduling.summary(found)
    assert metrics["shortest-remaining_short_p95_over_fifo"] == pytest.approx((1 / 4 + 3 / 6) / 2)
    assert metrics["shortest-remaining_p95_over_fifo"] == 1.5
    assert (metrics["fifo_p95_s_least"], metrics["fifo_p95_s_most"]) == (4, 6)
    assert all(checks.values())
    found["shortest-remaining"][1] = run(7, 9)  # a gain in the median only is none
    assert not any(scheduling.summary(found)[1].values())
