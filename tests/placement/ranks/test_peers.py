"""Files of ranks that were killed go; what a process of another container may hold stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from talkies.errors import ConfigError
from talkies.placement.ranks.peers import PREFIX, Peers, pid_namespace, sweep


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


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_rank_that_cannot_map_the_shared_memory_is_named_to_all(alone, tmp_path):
    with pytest.raises(ConfigError, match=r"rank 0 cannot share its weights: .*absent"):
        Peers(alone, tmp_path / "absent")


def test_the_shared_memory_has_no_name_once_all_have_mapped_it(alone, tmp_path):
    peers = Peers(alone, tmp_path)
    peers.check()
    assert list(tmp_path.iterdir()) == []
