"""What the first rank says, when it does not, and which words a failure ends in."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from talkies.errors import WorkerDied
from talkies.placement.ranks.leader import Leader


class Peers:
    """Of a group whose collectives do nothing."""

    group = None

    def __init__(self):
        self.failed, self.trouble, self.given = [], None, []

    def check(self):
        if self.trouble is not None:
            raise self.trouble

    def together(self, what, run):
        self.given.append(what)

    def fail(self, error):
        self.failed.append(error)


class Thing:
    """Such as a request's state."""


@pytest.fixture
def peers():
    return Peers()


def leader_of(peers, told, died=lambda: None):
    return Leader(SimpleNamespace(peers=peers), told.append, died)


def test_the_order_goes_first_then_tensors_then_the_work(peers):
    told = []
    leader = leader_of(peers, told)

    def work():
        assert leader.busy
        assert (told, len(peers.given)) == (["step"], 2)
        return 7

    assert leader.together("step", (torch.ones(2), torch.ones(0), torch.ones(3)), work) == 7  # an empty one is known
    assert not leader.busy
    assert leader.failure is None


def test_a_rank_that_failed_before_is_told_nothing_more(peers):
    told = []
    leader = leader_of(peers, told)
    peers.trouble = WorkerDied("rank 1 failed (OSError): rank 0 stops, too")
    with pytest.raises(WorkerDied, match="rank 1 failed"):
        leader.together("step", (), lambda: pytest.fail("ran"))
    assert told == []
    assert not leader.busy
    peers.trouble = None
    with pytest.raises(WorkerDied, match=r"the ranks of this engine ended: rank 1 failed .*open the engine again"):
        leader.together("step", (), lambda: pytest.fail("ran"))
    assert told == []


def test_work_that_raises_ends_the_ranks_with_its_own_error(peers):
    leader = leader_of(peers, [], died=lambda: "rank 1 was killed")  # nobody asks: it is no death of a rank
    error = ValueError("no room")
    with pytest.raises(ValueError, match="no room"):
        leader.together("step", (), lambda: (_ for _ in ()).throw(error))
    assert peers.failed == [error]
    assert leader.failure == "no room"


def test_a_rank_that_was_ended_from_outside_is_named(peers):
    leader = leader_of(peers, [], died=lambda: "rank 1 was killed by signal 9")
    broken = WorkerDied("a collective broke")
    with pytest.raises(WorkerDied, match=r"rank 1 was killed by signal 9 .*restarted together") as found:
        leader.together("step", (), lambda: (_ for _ in ()).throw(broken))
    assert found.value.__cause__ is broken
    assert leader.failure == "rank 1 was killed by signal 9"


def test_things_have_numbers_until_they_are_gone(peers):
    leader, first, second = leader_of(peers, []), Thing(), Thing()
    assert [leader.number(thing) for thing in (first, second, first)] == [(1, True), (2, True), (1, False)]
    assert leader.forgotten() == ()
    del first
    gc.collect()
    assert leader.forgotten() == (1,)
    assert leader.forgotten() == ()
    assert leader.number(Thing())[0] == 3
