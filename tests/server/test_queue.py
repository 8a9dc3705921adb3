"""Places and ETAs as clients see them: in answers, lists and event streams."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from talkies.engine.port.service import RESTARTING, JobEvent, QueueOrder
from tests.server.conftest import Server, serving
from tests.server.fakes import FakeService
from tests.server.jobs.test_lifecycle import until
from tests.server.test_events import stream


def listed(server: Server) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in server.http.get("/v1/videos").json()["data"]}


def test_three_jobs_behind_one_have_three_places_and_three_times(tmp_path: Path) -> None:
    with serving(tmp_path, FakeService(step_s=2.0)) as server:
        running = server.create("slow")
        server.wait(running["id"], "in_progress")
        jobs = [server.create(f"slow {i}") for i in range(3)]
        assert [job["queue_position"] for job in jobs] == [1, 2, 3]
        # Each of the fake's jobs is predicted to take ten seconds; the first is on its first step.
        assert [round(job["eta_s"]) for job in jobs] == [20, 30, 40]
        by_id = listed(server)
        assert [by_id[job["id"]]["queue_position"] for job in jobs] == [1, 2, 3]
        assert by_id[running["id"]]["queue_position"] is None


def test_everybody_whom_a_newcomer_overtakes_is_told(server: Server) -> None:
    running, waiting = server.create("slow"), server.create("slow 1")
    server.wait(running["id"], "in_progress")
    seen: list[tuple[str, dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: seen.extend(stream(server, waiting["id"])))
    thread.start()
    until(lambda: seen or server.coordinator.live._watchers.get(waiting["id"]))
    newcomer = server.create("slow 2")
    assert server.service.on_order is not None
    server.service.on_order(QueueOrder(job_ids=(newcomer["id"], running["id"], waiting["id"])))
    by_id = listed(server)
    assert [by_id[job["id"]]["queue_position"] for job in (newcomer, waiting)] == [1, 2]
    assert server.http.get(f"/v1/videos/{waiting['id']}").json()["queue_position"] == 2
    server.http.delete(f"/v1/videos/{newcomer['id']}")
    assert server.http.get(f"/v1/videos/{waiting['id']}").json()["queue_position"] == 1
    server.service.release.set()
    thread.join(10)
    places = [data["queue_position"] for name, data in seen if name in ("job", "progress")]
    assert 2 in places
    assert places[places.index(2) :].count(1) >= 1
    assert seen[-1][0] == "done"


def test_no_two_jobs_ever_have_one_place(server: Server) -> None:
    ids = [server.create(f"slow {i}")["id"] for i in range(17)]
    server.wait(ids[0], "in_progress")
    stop = threading.Event()

    def shuffle() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            order = ids[turn % 17 :] + ids[: turn % 17]
            server.service.on_order(QueueOrder(job_ids=tuple(order)))  # type: ignore[misc]

    thread = threading.Thread(target=shuffle)
    thread.start()
    try:
        for _ in range(20):
            places = [job["queue_position"] for job in listed(server).values()]
            assert sorted(p for p in places if p is not None) == list(range(1, 17))
    finally:
        stop.set()
        thread.join()


def test_while_a_worker_is_replaced_its_jobs_say_so(server: Server) -> None:
    running, waiting = server.create("slow"), server.create("slow 1")
    server.wait(running["id"], "in_progress")
    for job in (running, waiting):
        server.coordinator.follower.on_event(JobEvent(job_id=job["id"], kind="queued", stage=RESTARTING))
    by_id = listed(server)
    assert {job["stage"] for job in by_id.values()} == {"restarting"}
    assert [by_id[j["id"]]["status"] for j in (running, waiting)] == ["queued", "queued"]
    assert by_id[running["id"]]["paused"]
    for job in (running, waiting):  # the next worker has them
        server.coordinator.follower.on_event(JobEvent(job_id=job["id"], kind="queued"))
    assert {job["stage"] for job in listed(server).values()} == {None}
    server.service.release.set()
    assert server.wait(waiting["id"])["status"] == "completed"
