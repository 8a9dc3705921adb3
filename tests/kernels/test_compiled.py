"""Where Triton keeps what it compiles when the home folder will not do."""

import os
import tempfile
from pathlib import Path

import pytest

from talkies.kernels.compiled import keep_compiled


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # so that what the function sets is undone
    monkeypatch.delenv("TRITON_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_a_home_is_left_to_triton(monkeypatch, tmp_path, elsewhere):
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == ""
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("home", ["~", "/dev/null/home"])
def test_no_home_or_one_that_cannot_be_written_is_a_private_folder(monkeypatch, elsewhere, home):
    monkeypatch.setenv("HOME", home)
    keep_compiled()
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    assert folder.parent == elsewhere
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    keep_compiled()  # the next process finds it again
    assert Path(os.environ["TRITON_CACHE_DIR"]) == folder


def test_a_folder_that_others_can_write_is_not_used(monkeypatch, elsewhere):
    planted = elsewhere / f"talkies-triton-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    monkeypatch.setenv("HOME", "~")
    keep_compiled()
    assert Path(os.environ["TRITON_CACHE_DIR"]) != planted


def test_a_named_folder_stays(monkeypatch):
    monkeypatch.setenv("HOME", "~")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/named")
    keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == "/named"
