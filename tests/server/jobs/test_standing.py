"""Places and ETAs, from the order of the jobs and what each has left."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from talkies.engine.port.service import QueueOrder
from talkies.server.jobs.live import Live
from talkies.server.jobs.standing import Ahead, etas_s, places


def line_of(*seconds: float | None, **fields: Any) -> list[Ahead]:
    return [Ahead(left_s, **fields) for left_s in seconds]


def test_a_place_counts_those_that_have_not_begun() -> None:
    line = [Ahead(9.0), Ahead(1.0, begun=True), Ahead(2.0), Ahead(3.0, begun=True), Ahead(4.0)]
    assert places(line) == [1, None, 2, None, 3]


@pytest.mark.parametrize("policy", ["fifo", "shortest-remaining"])
def test_each_ends_after_those_ahead_of_it(policy: str) -> None:
    assert etas_s(line_of(3.0, 2.0, 1.0), policy=policy) == [3.0, 5.0, 6.0]


def test_nobody_knows_behind_one_that_nobody_knows() -> None:
    assert etas_s(line_of(3.0, None, 1.0), policy="fifo") == [3.0, None, None]
    assert etas_s([], policy="fifo") == []


def test_those_that_share_forwards_do_not_wait_for_each_other() -> None:
    assert etas_s(line_of(3.0, 5.0, 1.0), policy="fifo", together=2) == [3.0, 5.0, 6.0]


def test_with_fair_turns_a_job_waits_for_no_more_than_its_own_length_of_each_other() -> None:
    assert etas_s(line_of(10.0, 2.0, 4.0), policy="fair") == [16.0, 6.0, 10.0]
    line = [Ahead(5.0, priority=1), Ahead(10.0), Ahead(2.0)]
    assert etas_s(line, policy="fair") == [5.0, 17.0, 9.0]


def standing(live: Live, *names: str) -> list[tuple[int | None, float | None]]:
    found = []
    for name in names:
        state, eta_s = live.get(name), live.eta_s(name)
        assert state is not None
        found.append((state.queue_position, None if eta_s is None else round(eta_s, 1)))
    return found


def test_an_order_moves_all_places_at_once_and_tells_everybody_that_moved() -> None:
    async def watch() -> None:
        live = Live("shortest-remaining")
        live.bind(asyncio.get_running_loop())

        async def news() -> dict[str, Any]:
            for _ in range(3):
                await asyncio.sleep(0)
            found = {name: await watcher.next(0.001) for name, watcher in watchers.items()}
            return {name: heard["progress"] for name, heard in found.items() if "progress" in heard}

        for name, seconds in (("a", 9.0), ("b", 5.0), ("c", 5.0)):
            live.add(name, predicted_s=seconds)
        live.update("a", begun=True, left_s=8.0)
        assert standing(live, "a", "b", "c") == [(None, 8.0), (1, 13.0), (2, 18.0)]
        watchers = {name: live.watch(name) for name in "abc"}
        await news()

        live.add("short", predicted_s=1.0)
        live.reorder(QueueOrder(job_ids=("short", "a", "b", "c")))
        assert standing(live, "short", "a", "b", "c") == [(1, 1.0), (None, 9.0), (2, 14.0), (3, 19.0)]
        told = await news()
        assert [(told[n]["queue_position"], told[n]["eta_s"]) for n in "abc"] == [(None, 9.0), (2, 14.0), (3, 19.0)]

        live.end("short", "done")
        assert standing(live, "a", "b", "c") == [(None, 8.0), (1, 13.0), (2, 18.0)]
        assert (await news())["c"]["queue_position"] == 2

        live.update("a", left_s=7.9)  # nothing that those who wait would notice
        assert set(await news()) == {"a"}
        live.update("a", left_s=2.0)
        assert (await news())["b"]["eta_s"] == 7.0

    asyncio.run(watch())


def test_ids_that_only_one_side_knows_cost_nobody_their_place() -> None:
    live = Live()
    for name in "abc":
        live.add(name, predicted_s=1.0)
    live.reorder(QueueOrder(job_ids=("gone", "c", "a")))
    assert standing(live, "c", "a", "b") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_the_start_of_a_worker_counts_and_an_unknown_one_makes_times_unknown() -> None:
    live = Live()
    live.add("a", predicted_s=2.0)
    live.reorder(QueueOrder(job_ids=("a",), ready_in_s=30.0))
    assert live.eta_s("a") == pytest.approx(32.0, abs=1.0)
    before = live.eta_s("a")
    time.sleep(0.01)
    assert live.eta_s("a") < before  # type: ignore[operator]
    live.reorder(QueueOrder(job_ids=("a",), ready_in_s=None))
    assert standing(live, "a") == [(1, None)]
    live.reorder(QueueOrder(job_ids=("a",)))
    assert standing(live, "a") == [(1, 2.0)]
