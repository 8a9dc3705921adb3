"""Files of ranks that were killed go; what a process of another container may hold stays."""

from __future__ import annotations

import os
import subprocess
import sys

from talkies.placement.ranks.peers import PREFIX, pid_namespace, sweep


def ended_pid():
    """Of a process that was here and is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_files_of_dead_processes_of_this_namespace_are_swept(tmp_path):
    here, gone = pid_namespace(), ended_pid()
    names = {
        "dead": f"{PREFIX}-{here}-{gone}-aa-1",
        "alive": f"{PREFIX}-{here}-{os.getpid()}-aa-1",
        "of another container": f"{PREFIX}-{here}1-{gone}-aa-1",
        "of an older version": f"{PREFIX}-{gone}-aa-1",
        "not ours": "other-1",
    }
    for name in names.values():
        (tmp_path / name).touch()
    assert sweep(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == set(names.values()) - {names["dead"]}


def test_a_namespace_is_that_of_the_process():
    found = os.stat("/proc/self/ns/pid").st_ino
    assert pid_namespace() == str(found)
