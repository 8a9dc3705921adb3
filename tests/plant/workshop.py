"""A copy of the tree in which faults are planted and tests are run; the tree itself is never written to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.plant.faults import Fault

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".import_linter_cache", "*.mp4", "shared")
# What needs minutes, a GPU or a browser is no part of a room's tests here.
# Plugins that others need are left out: they take a third of a short run.
PYTEST = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "pytest_timeout",
    "-m",
    "not slow and not bench and not gpu and not browser",
)
NOTHING_COLLECTED = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """``passed``: nothing failed and nothing hung. ``failed`` is the first test that did, or what ended the run."""

    passed: bool
    failed: str = ""


class Workshop:
    """``with Workshop(root) as shop``: the copy goes when it ends, whatever ended it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Workshop:
        self._folder = tempfile.TemporaryDirectory(prefix="planted-")
        self.tree = Path(self._folder.name) / "tree"
        shutil.copytree(self._root, self.tree, ignore=LEFT_OUT, symlinks=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """The copy with one fault in it."""
        path = self.tree / fault.path
        source = path.read_bytes()
        try:
            self._write(path, fault.planted(source))
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        # Python takes a compiled file for fresh by size and second: two faults of one second would be one.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def run(self, tests: Sequence[str], limit_s: float) -> Ran:
        """Tests up to the first that fails. One that hangs is ended with all of its children."""
        existing = [test for test in tests if (self.tree / test.split("::")[0]).exists()]
        if not existing:
            return Ran(True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *PYTEST, *existing],
            cwd=self.tree,
            env={**self._environment(), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=limit_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            return Ran(False, f"no end within {limit_s:.0f} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own session, so nobody else's
                process.communicate()
        passed = process.returncode in (0, NOTHING_COLLECTED)
        return Ran(passed, "" if passed else _first_failure(output))

    def check_imports(self, package: str) -> None:
        """Raises ``RuntimeError`` where another install would be tested in place of the copy."""
        code = f"import {package}; print({package}.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.tree,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        if not Path(found).is_relative_to(self.tree):
            raise RuntimeError(f"{package} comes from {found}, not from the copy in {self.tree}")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.tree / "src")}


def _first_failure(output: str) -> str:
    # Only from the summary: above it stand captured log lines, which begin with ERROR, too.
    for line in output.rpartition("short test summary info")[2].splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" - ")[0].split(" ", 1)[1]
    lines = output.strip().splitlines()
    return lines[-1] if lines else "no output"
