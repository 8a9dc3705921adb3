"""A user without a home, as a container's uid often is: HOME unset and no entry in /etc/passwd."""

import os
import subprocess
import sys

import pytest

NOBODY = """
import pwd

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
"""


@pytest.fixture
def talkies(tmp_path):
    """A command in an empty folder, in which it leaves nothing."""
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "sitecustomize.py").write_text(NOBODY)
    (tmp_path / "here").mkdir()

    def run(*args, **variables):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("HOME", "XDG_", "HF_", "TALKIES_"))}
        paths = [str(tmp_path / "nobody"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "talkies", *args],
            env=environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | variables,
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert list((tmp_path / "here").iterdir()) == []
        return done

    return run


def test_serve_asks_for_its_folder_in_one_line(talkies):
    done = talkies("serve")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: --data-dir: there is no home folder to keep jobs and videos in"
        " (give --data-dir (TALKIES_DATA_DIR), or set HOME)"
    ]


def test_a_tilde_is_named(talkies):
    done = talkies("serve", "--data-dir", "~/jobs")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: --data-dir '~/jobs' begins with a home folder that is unknown (write the path out, or set HOME)"
    ]


def test_a_download_asks_for_the_hubs_variable(talkies):
    done = talkies("generate", "a ball", "-o", "clip.mp4", "--model", "owner/name", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("(set HF_HOME to a folder, or download it and pass its folder)")
    assert "Traceback" not in done.stderr


def test_what_needs_no_folder_runs(talkies):
    assert talkies("plan", "--gpu", "h200").returncode == 0


def test_measured_rates_are_kept_nowhere(monkeypatch, tmp_path):
    from talkies.engine.load.planning import cache_folder

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "talkies"
    monkeypatch.setenv("HOME", "~")
    assert cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "talkies"
