"""A begun job that others are served before is shown as waiting, once, until it is served again."""

from __future__ import annotations

import pytest

from talkies.engine.worker import passed_over
from talkies.engine.worker.passed_over import PAUSED_AFTER_S, Turns


@pytest.fixture
def clock(monkeypatch):
    """Seconds, as a list of one number that a test sets."""
    now = [100.0]
    monkeypatch.setattr(passed_over.time, "monotonic", lambda: now[0])
    return now


def test_it_is_told_once_and_again_after_its_next_turn(clock):
    turns = Turns()
    turns.served(("long",))
    clock[0] += PAUSED_AFTER_S
    assert turns.passed_over(("short",)) == []
    clock[0] += 0.1
    assert turns.passed_over(("short",)) == ["long"]
    clock[0] += 10
    assert turns.passed_over(("short",)) == []
    turns.served(("long", "short"))
    clock[0] += 10
    assert sorted(turns.passed_over(())) == ["long", "short"]


def test_what_is_in_work_or_gone_is_not_passed_over(clock):
    turns = Turns()
    turns.served(("in work", "gone"))
    turns.forget("gone")
    clock[0] += 10
    assert turns.passed_over(("in work",)) == []
