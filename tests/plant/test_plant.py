"""The planting of faults, on a package of one file that is made up here."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

import pytest

from tests.plant import __main__ as plant
from tests.plant.faults import faults_in
from tests.plant.named import NAMED
from tests.plant.rooms import ROOMS, files_of, stages_of
from tests.plant.workshop import Workshop

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A docstring with 3 in it."""

LIMIT = 10


def clip(x, low=0):
    if x > 1000:
        raise ValueError(f"{x} is over 1000, by {x - 1000}")
    log.info("clipped to %d", 7)
    return max(low, min(x, LIMIT))


def save(file, data):
    file.write(data)
    file.flush()
    return data.float() is None
'''
TESTS = """import pytest
from toy.room.clip import clip


def test_clip():
    assert clip(5) == 5
    assert clip(-1) == 0
    assert clip(11) == 10


def test_large():
    with pytest.raises(ValueError):
        clip(2000)
"""
TOY = """def clip(x, low=0):
    if x > 1000:
        raise ValueError(x)
    return max(low, min(x, 10))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A tree whose one room is tested but for one bound: nobody asks for 1,000 itself."""
    root = tmp_path / "toy-root"
    for folder in ("src/toy/room", "tests/room"):
        (root / folder).mkdir(parents=True)
    for init in ("src/toy", "src/toy/room"):
        (root / init / "__init__.py").touch()
    (root / "src/toy/room/clip.py").write_text(TOY)
    (root / "tests/room/test_clip.py").write_text(TESTS)
    monkeypatch.setattr("tests.plant.workshop.PYTEST", ("-x", "-q", "-p", "no:cacheprovider"))
    return root


def _plans(root):
    path = "src/toy/room/clip.py"
    faults = faults_in((root / path).read_bytes(), path)
    return [
        plant.Plan(fault, "room", [("tests/room/test_clip.py",)])
        for fault in faults
        if fault.operator in ("bound", "check", "constant")
    ]


def _changes(source=SOURCE):
    data = source.encode()
    return {(f.operator, *f.lines(data)) for f in faults_in(data, "x.py")}


def test_each_operator_makes_its_slip_and_words_are_left_alone():
    assert _changes() == {
        ("constant", "LIMIT = 10", "LIMIT = 11"),
        ("default", "def clip(x, low=0):", "def clip(x, low=1):"),
        ("constant", "if x > 1000:", "if x > 1001:"),
        ("bound", "if x > 1000:", "if x >= 1000:"),
        ("flip", "if x > 1000:", "if x <= 1000:"),
        ("check", 'raise ValueError(f"{x} is over 1000, by {x - 1000}")', "pass"),
        ("twin", "return max(low, min(x, LIMIT))", "return min(low, min(x, LIMIT))"),
        ("twin", "return max(low, min(x, LIMIT))", "return max(low, max(x, LIMIT))"),
        ("order", "file.write(data) ⏎ file.flush()", "file.flush() ⏎ file.write(data)"),
        ("wait", "file.flush()", "pass"),
        ("conversion", "return data.float() is None", "return data is None"),
        ("flip", "return data.float() is None", "return data.float() is not None"),
    }


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("y = a - (b)", None),  # a bracket between: left alone
        ("y = é - b", ("arithmetic", "y = é - b", "y = é + b")),
        ("y = 'ü' if a and b else c", ("flip", "y = 'ü' if a and b else c", "y = 'ü' if a or b else c")),
        ("y = x.clamp(0.0, 2)", ("clamp", "y = x.clamp(0.0, 2)", "y = x")),
        ("y = (x * z).clamp_(min=1)", ("clamp", "y = (x * z).clamp_(min=1)", "y = (x * z)")),
        ("y = (x + z).float()", ("conversion", "y = (x + z).float()", "y = (x + z)")),
        ("y: int = 3", ("default", "y: int = 3", "y: int = 4")),
        ("def f(x=3): ...", None),  # what a protocol promises is no code
        ("y = 0.5", ("constant", "y = 0.5", "y = 0.75")),
        ("y = True", ("constant", "y = True", "y = False")),
    ],
)
def test_a_slip_is_where_it_was_found_whatever_the_letters(line, change):
    found = _changes(line)
    assert change in found if change else not found


def test_what_is_only_printed_of_a_field_is_left_alone():
    line = "y: int = field(default=3, repr=False, compare=True)"
    assert _changes(line) == {("default", line, line.replace("3", "4"))}


def test_every_fault_of_this_tree_is_still_python():
    for path in [path for room in ROOMS for path in files_of(ROOT, room)]:
        source = (ROOT / path).read_bytes()
        for fault in faults_in(source, path)[::10]:
            planted = fault.planted(source)
            assert planted != source
            compile(planted, path, "exec")


def test_what_nobody_noticed_is_printed_and_the_tree_is_as_it_was(toy, capsys):
    with Workshop(toy) as shop:
        shop.check_imports("toy")
        code = plant.plant_all(shop, _plans(toy), {}, stop_at=time.monotonic() + 1e6)
        assert (shop.tree / "src/toy/room/clip.py").read_text() == TOY
        assert shop.tree.exists()
    assert not shop.tree.exists()
    assert (toy / "src/toy/room/clip.py").read_text() == TOY
    out = capsys.readouterr().out
    assert code == 1
    survivors = [line for line in out.splitlines() if line.startswith("SURVIVED")]
    assert [line.split()[2] for line in survivors] == ["bound", "constant"]  # x >= 1000, x > 1001
    assert "  - if x > 1000:\n  + if x >= 1000:" in out
    assert "noticed  room check src/toy/room/clip.py:3 by tests/room/test_clip.py::test_large" in out
    assert out.splitlines()[-1] == f"{len(_plans(toy)) - 2} noticed, 0 accepted, 0 unclear, 2 survived"


def test_a_reason_makes_a_survivor_accepted_and_time_ends_it(toy, capsys):
    bound = [plan for plan in _plans(toy) if plan.fault.operator == "bound"]
    reasons = {("src/toy/room/clip.py", "if x > 1000:", "if x >= 1000:"): "nobody asks for 1,000"}
    with Workshop(toy) as shop:
        assert plant.plant_all(shop, bound, reasons, stop_at=time.monotonic() + 1e6) == 0
        assert "accepted room bound src/toy/room/clip.py:2 nobody asks for 1,000" in capsys.readouterr().out
        assert plant.plant_all(shop, bound, {}, stop_at=time.monotonic() - 1) == 0
        assert "out of time: 1 of 1 were not planted" in capsys.readouterr().out


def test_tests_that_fail_by_themselves_teach_nothing(toy, capsys):
    (toy / "tests/room/test_clip.py").write_text("def test_never():\n    assert False\n")
    with Workshop(toy) as shop:
        assert plant.plant_all(shop, _plans(toy)[:1], {}, stop_at=time.monotonic() + 1e6) == 2
    out = capsys.readouterr().out
    assert "unclear" in out
    assert "tests/room/test_clip.py::test_never fails without the fault, too" in out


def test_a_captured_log_line_is_no_name_of_a_test(toy):
    (toy / "tests/room/test_clip.py").write_text(
        "import logging\n"
        "def test_says_so():\n"
        "    logging.getLogger('toy').error('the engine is dead')\n"
        "    assert False\n"
    )
    with Workshop(toy) as shop:
        ran = shop.run(("tests/room/test_clip.py",), limit_s=300.0)
    assert (ran.passed, ran.failed) == (False, "tests/room/test_clip.py::test_says_so")


def test_a_test_that_hangs_has_noticed_and_leaves_no_child(toy, monkeypatch):
    started = toy / "child"
    (toy / "tests/room/test_clip.py").write_text(
        "import os, pathlib, subprocess, sys\n"
        "def test_hangs():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
        f"    new = pathlib.Path({str(started)!r} + '.new')\n"
        "    new.write_text(str(child.pid))\n"
        f"    new.rename({str(started)!r})\n"
        "    child.wait()\n"
    )
    plain = subprocess.Popen.communicate

    def communicate(process, input=None, timeout=None):
        """The time is up as soon as there is a child."""
        if timeout is None:
            return plain(process)
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
        raise subprocess.TimeoutExpired("pytest", timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with Workshop(toy) as shop:
        ran = shop.run(("tests/room/test_clip.py",), limit_s=300.0)
    assert (ran.passed, ran.failed) == (False, "no end within 300 s")
    status = Path("/proc", started.read_text(), "status")
    assert not status.exists() or "zombie" in status.read_text()


def test_a_copy_that_is_not_what_is_imported_is_refused(toy):
    (toy / "src/toy/__init__.py").unlink()
    (toy / "src/toy/room/__init__.py").unlink()
    (toy / "src/toy").rename(toy / "src/other")
    with Workshop(toy) as shop, pytest.raises(RuntimeError, match=r"json comes from .*, not from the copy"):
        shop.check_imports("json")


def test_the_same_seed_chooses_the_same_and_rooms_take_turns():
    def choose(seed, plants=12):
        options = argparse.Namespace(seed=seed, plants=plants, rooms=["sampling", "model", "h3"])
        return list(plant.chosen(ROOT, options))

    first = choose(1)
    assert first == choose(1)
    assert first[:6] == choose(1, 6)
    assert first != choose(2)
    assert [plan.room for plan in first] == ["sampling", "model", "h3"] * 4
    assert len({plan.fault.operator for plan in first if plan.room == "model"}) == 4


def test_rooms_and_their_tests_exist():
    for room, tests in ROOMS.items():
        files = files_of(ROOT, room)
        assert files, room
        for stage in [tests, *stages_of(ROOT, room, files[-1])]:
            assert all((ROOT / test).exists() for test in stage), stage


def test_named_faults_have_their_place_in_the_files_of_today():
    for named in NAMED:
        named.fault(ROOT)
        assert all((ROOT / test).is_file() for test in named.tests)


def test_accepted_survivors_are_faults_of_today():
    for path, before, after in plant.accepted(plant.ACCEPTED):
        source = (ROOT / path).read_bytes()
        assert (before, after) in {fault.lines(source) for fault in faults_in(source, path)}
