"""A stop while the ranks start: no temporary folder, no process and no traceback stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WITHIN_S = 100


def hear_signals():
    """A shell's background job, and so its tests, ignores Ctrl-C; a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def follower_of(process):
    """The id of the process that ``process`` starts as its other rank, as soon as there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end and process.poll() is None:
        for pid in children.read_text().split():
            if b"rank_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        time.sleep(0.01)
    raise AssertionError(f"no rank was started: {process.communicate()[1]}")


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [(signal.SIGTERM, 143, ["cancelled"]), (signal.SIGINT, 130, ["cancelled"]), (signal.SIGKILL, -9, [])],
)
def test_a_stopped_start_leaves_nothing(tmp_path, stop, code, said):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "talkies", "generate", "a ball", "-o", "clip.mp4", "--tensor-parallel-size", "2"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    follower = follower_of(process)
    process.send_signal(stop)
    errors = process.communicate(timeout=WITHIN_S)[1]  # ends when nobody can write any more: the other rank has ended
    assert process.returncode == code
    assert [line for line in errors.splitlines() if not line.startswith("note:")] == said
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.glob("*.mp4*")) == []
    state = Path(f"/proc/{follower}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
