"""Whose step is next, under each policy."""

from itertools import pairwise

import pytest

from talkies.engine.worker.scheduler import StepScheduler
from talkies.errors import ConfigError


def admit(scheduler, name, steps, *, rows=10, priority=0):
    scheduler.admit(name, rows=rows, remaining=float(rows * steps), priority=priority)


def run(scheduler, left, *, batch=False, arrivals=None, limit=10_000):
    """Runs units until nothing is left; returns the groups in order. ``left`` {name: steps}, rows are 10."""
    order = []
    for tick in range(limit):
        for name, steps in (arrivals or {}).get(tick, {}).items():
            left[name] = steps
            admit(scheduler, name, steps)
        group = scheduler.next()
        if not group:
            break
        order.append(group)
        for name in group:
            left[name] -= 1
            scheduler.report(name, work=10.0, remaining=10.0 * left[name], batch_key="k" if batch else None)
            if left[name] <= 0:
                scheduler.remove(name)
    return order


def started(policy="shortest-remaining", jobs=None, **options):
    scheduler = StepScheduler(policy, **options)
    for name, steps in (jobs or {}).items():
        admit(scheduler, name, steps)
    return scheduler, dict(jobs or {})


def test_fifo_finishes_in_order_whatever_the_length():
    scheduler, left = started("fifo", {"long": 5, "short": 1})
    assert run(scheduler, left) == [("long",)] * 5 + [("short",)]


def test_the_shortest_runs_first():
    scheduler, left = started(jobs={"long": 5, "short": 1, "middle": 3})
    assert [g[0] for g in run(scheduler, left)] == ["short"] + ["middle"] * 3 + ["long"] * 5


def test_a_short_newcomer_interrupts_at_the_next_step_and_only_then():
    scheduler, left = started(jobs={"long": 9})
    order = [g[0] for g in run(scheduler, left, arrivals={3: {"short": 2}})]
    assert order == ["long"] * 3 + ["short"] * 2 + ["long"] * 6


def test_a_newcomer_of_about_the_same_length_waits():
    scheduler, left = started(jobs={"first": 9})
    order = [g[0] for g in run(scheduler, left, arrivals={1: {"second": 7}})]
    assert order == ["first"] * 9 + ["second"] * 7


def test_a_stream_of_short_jobs_cannot_starve_a_long_one():
    scheduler, left = started(jobs={"long": 50})
    arrivals = {tick: {f"short{tick}": 2} for tick in range(0, 1000, 2)}  # exactly as much as the device can do
    order = [g[0] for g in run(scheduler, left, arrivals=arrivals)]
    last = len(order) - order[::-1].index("long")
    assert last < 400, last  # 4 times its own 50 steps of waiting, its own, and what was ahead


def test_fair_gives_equal_turns_and_a_newcomer_no_more_than_its_share():
    scheduler, left = started("fair", {"a": 40, "b": 40})
    order = [g[0] for g in run(scheduler, left, arrivals={20: {"c": 10}})]
    assert abs(order[:20].count("a") - order[:20].count("b")) <= 1
    turns = order[20:50]
    assert all(8 <= turns.count(name) <= 12 for name in "abc"), turns


@pytest.mark.parametrize("policy", ["fifo", "shortest-remaining", "fair"])
def test_priority_wins_over_every_policy(policy):
    scheduler, left = started(policy, {"low": 2})
    admit(scheduler, "high", 9, priority=1)
    left["high"] = 9
    assert [g[0] for g in run(scheduler, left)] == ["high"] * 9 + ["low"] * 2


@pytest.mark.parametrize("policy", ["fifo", "shortest-remaining", "fair"])
def test_every_job_ends_under_every_policy(policy):
    jobs = {f"j{i}": 1 + (i * 7) % 13 for i in range(60)}
    scheduler, left = started(policy, jobs)
    order = run(scheduler, left)
    assert sum(len(g) for g in order) == sum(jobs.values())
    assert len(scheduler) == 0


def test_a_cancelled_job_is_never_chosen_again():
    scheduler, _ = started(jobs={"a": 3, "b": 9})
    assert scheduler.next() == ("a",)
    assert scheduler.remove("a")
    assert not scheduler.remove("a")
    scheduler.report("a", work=10.0, remaining=20.0)  # its last unit may report late
    assert "a" not in scheduler
    assert scheduler.next() == ("b",)


def turns(scheduler, count):
    """Who has each of the next units; all jobs are endless."""
    order = []
    for _ in range(count):
        (name,) = scheduler.next()
        order.append(name)
        scheduler.report(name, work=10.0, remaining=1e4)
    return order


def test_a_newcomer_begins_where_its_own_priority_stands():
    scheduler, _ = started("fair", {"low": 900})
    admit(scheduler, "high", 900, priority=1)
    turns(scheduler, 100)
    admit(scheduler, "new", 900, priority=1)
    assert turns(scheduler, 20).count("high") == 10


def test_only_so_many_jobs_are_begun_at_once():
    scheduler, _ = started("fair", {f"j{i}": 9 for i in range(5)}, max_active=2)
    seen = set()
    for _ in range(12):
        (name,) = scheduler.next()
        seen.add(name)
        scheduler.report(name, work=10.0, remaining=50.0)
    assert seen == {"j0", "j1"}
    assert scheduler.num_active == 2
    admit(scheduler, "urgent", 3, priority=5)
    assert scheduler.next() == ("urgent",)  # importance is not told to wait for a seat


def test_the_line_is_the_order_in_which_all_will_run():
    scheduler, _ = started(jobs={"a": 9, "b": 3})
    assert scheduler.line() == ("b", "a")
    scheduler.report("b", work=10.0, remaining=20.0)
    admit(scheduler, "short", 1)
    admit(scheduler, "urgent", 50, priority=1)
    assert scheduler.line() == ("urgent", "short", "b", "a")
    scheduler.remove("short")
    assert scheduler.line() == ("urgent", "b", "a")


@pytest.mark.parametrize("policy", ["fifo", "shortest-remaining"])
def test_jobs_run_in_the_order_of_the_line(policy):
    scheduler, left = started(policy, {f"j{i}": 1 + (i * 7) % 13 for i in range(20)})
    line = scheduler.line()
    assert tuple(dict.fromkeys(group[0] for group in run(scheduler, left))) == line


def test_equal_jobs_run_by_arrival_though_their_prompts_differ():
    scheduler = StepScheduler()
    for name, size in (("first", 1040.0), ("second", 1000.0), ("third", 1020.0), ("fourth", 1000.0)):
        scheduler.admit(name, rows=10, remaining=size)
    scheduler.admit("shorter", rows=10, remaining=900.0)
    scheduler.admit("longer", rows=10, remaining=1100.0)
    assert scheduler.line() == ("shorter", "first", "second", "third", "fourth", "longer")


def test_a_chain_of_small_differences_is_still_an_order():
    scheduler = StepScheduler()
    sizes = [1000 * 1.04**i for i in (5, 0, 3, 1, 4, 2, 9, 7, 8, 6)]
    for i, size in enumerate(sizes):
        scheduler.admit(f"j{i}", rows=10, remaining=size)
    line = scheduler.line()
    assert sorted(line) == sorted(f"j{i}" for i in range(10))
    for ahead, behind in pairwise(line):
        a, b = (sizes[int(name[1:])] for name in (ahead, behind))
        assert a <= b * 1.11, (ahead, behind)  # nobody goes first who is longer by more than twice the tolerance


def test_another_one_reads_from_the_books_what_this_one_would_do():
    scheduler, left = started(jobs={"a": 9, "b": 7, "c": 2})
    for name in ("c", "c", "b"):
        left[name] -= 1
        scheduler.report(name, work=10.0, remaining=10.0 * left[name])
    copy = StepScheduler.of(scheduler.books(), "shortest-remaining")
    for twin in (scheduler, copy):
        admit(twin, "new", 4)
        admit(twin, "newer", 1, priority=2)
    assert copy.line() == scheduler.line()
    copy.report("a", work=10.0, remaining=0.0)  # what a copy does is its own affair
    copy.remove("b")
    assert "b" in scheduler
    assert scheduler.line() == StepScheduler.of(scheduler.books(), "shortest-remaining").line()


def test_batching_is_off_by_default():
    scheduler, left = started("fifo", {"a": 3, "b": 3}, max_step_rows=1000)
    assert {len(g) for g in run(scheduler, left, batch=True)} == {1}


def test_small_jobs_share_a_forward_up_to_the_limits():
    scheduler, left = started("fifo", dict.fromkeys("abcd", 6), max_num_seqs=3, max_step_rows=1000)
    groups = run(scheduler, left, batch=True)
    assert max(len(g) for g in groups) == 3
    scheduler, left = started("fifo", dict.fromkeys("abcd", 6), max_num_seqs=4, max_step_rows=25)
    groups = run(scheduler, left, batch=True)
    assert max(len(g) for g in groups) == 2  # 10 rows each


def test_a_job_that_fits_is_begun_first_so_that_it_can_join():
    scheduler, _ = started("fifo", {"a": 9, "b": 9}, max_num_seqs=2, max_step_rows=100)
    scheduler.report("a", work=10.0, remaining=80.0, batch_key="k")
    for _ in range(2):  # media, then text
        assert scheduler.next() == ("b",)
        scheduler.report("b", work=0.0, remaining=90.0, packed=False)
    scheduler.report("b", work=0.0, remaining=90.0, batch_key="k")
    assert scheduler.next() == ("a", "b")


def test_only_equal_keys_share():
    scheduler, _ = started("fifo", {"a": 9, "b": 9, "c": 9}, max_num_seqs=3, max_step_rows=100)
    for name, key in (("a", "fl2va"), ("b", "ref2va"), ("c", "fl2va")):
        scheduler.report(name, work=10.0, remaining=80.0, batch_key=key)
    assert scheduler.next() == ("a", "c")


def test_unknown_policies_and_sizes_are_refused():
    with pytest.raises(ConfigError, match="fifo"):
        StepScheduler("random")
    with pytest.raises(ConfigError):
        StepScheduler(max_num_seqs=0)


def begin(scheduler, name, **fields):
    scheduler.report(name, work=1.0, remaining=fields.pop("remaining", 100.0), **fields)


def test_a_job_that_does_not_fit_beside_the_others_waits_for_them():
    scheduler = StepScheduler("fifo")
    scheduler.room = 100
    scheduler.admit("a", rows=1, remaining=100, held=20, transient=30)
    scheduler.admit("big", rows=1, remaining=1, held=60, transient=30, priority=1)
    scheduler.admit("small", rows=1, remaining=1, held=10, transient=10)
    assert scheduler.next() == ("big",)  # nothing has begun: alone each of them fits
    begin(scheduler, "a")
    assert scheduler.next() == ("a",)  # 20 + 60 + 30 are over 100, though big has the higher priority
    scheduler.remove("big")
    scheduler.admit("big", rows=1, remaining=1, held=60, transient=30)
    begin(scheduler, "small")
    assert set(scheduler.next()) <= {"a", "small"}
    scheduler.remove("a")
    assert scheduler.next() == ("small",)  # fifo: it was first
    scheduler.remove("small")
    assert scheduler.next() == ("big",)


@pytest.mark.parametrize("policy", ["fifo", "shortest-remaining"])  # the latter would have both run before a
def test_nobody_behind_a_job_that_waits_for_memory_overtakes_it(policy):
    scheduler = StepScheduler(policy)
    scheduler.room = 100
    scheduler.admit("a", rows=1, remaining=100, held=50, transient=10)
    begin(scheduler, "a")
    scheduler.admit("big", rows=1, remaining=1, held=60, transient=10)
    scheduler.admit("small", rows=1, remaining=2, held=1, transient=1)
    for _ in range(5):
        assert scheduler.next() == ("a",)
        begin(scheduler, "a", remaining=50.0)
    scheduler.remove("a")
    assert scheduler.next() == ("big",)
    begin(scheduler, "big", remaining=1.0)
    assert scheduler.line() == ("big", "small")


def test_a_shared_forward_keeps_within_the_memory():
    scheduler = StepScheduler("fifo", max_num_seqs=4, max_step_rows=1000)
    scheduler.room = 100
    for name in "abc":
        scheduler.admit(name, rows=10, remaining=50, held=10, transient=25)
        begin(scheduler, name, rows=10, batch_key="k")
    assert scheduler.next() == ("a", "b")  # 3 x 10 held and 2 x 25 for the forward; a third would be 105
    scheduler.room = 105
    assert scheduler.next() == ("a", "b", "c")
