"""The order of jobs that a worker knows, and of those that it has not been told of."""

from pathlib import Path

from talkies.capacity.cost import CostModel, size_of
from talkies.capacity.demand import demand_of
from talkies.engine.port.messages import At, Books, Ready, Submit, WorkerOptions
from talkies.engine.port.service import RESTARTING, Job, JobEvent
from talkies.engine.service.queue_order import OrderTeller
from talkies.engine.worker.scheduler import StepScheduler
from talkies.request import Target, VideoRequest
from tests.engine.service.test_deaths import INFO, FakeLink, run, working  # noqa: F401

LIMITS = INFO.limits


def job(name, *, num_frames=None, priority=0, prompt=None, **fields):
    request = VideoRequest(prompt=prompt or name, target=Target(num_frames=num_frames), **fields)
    return Job(id=name, request=request, outputs=(Path(f"{name}.mp4"),), priority=priority)


def teller(policy="shortest-remaining", **options):
    return OrderTeller(WorkerOptions(config=None, policy=policy, **options))


def order(teller, *jobs):
    return teller.order(jobs, LIMITS, ready_in_s=0.0).job_ids


def test_without_a_worker_the_order_is_what_its_scheduler_will_do():
    jobs = job("long", num_sigmas=50), job("short", num_sigmas=9), job("urgent", num_sigmas=50, priority=3)
    assert order(teller(), *jobs) == ("urgent", "short", "long")
    assert order(teller("fifo"), *jobs) == ("urgent", "long", "short")


def test_equal_jobs_stand_by_arrival_whatever_the_length_of_their_prompts():
    words = [("a", "a red ball bounces on a wooden floor"), ("b", "cat"), ("c", "a ball"), ("d", "a " * 60)]
    assert order(teller(), *(job(name, prompt=prompt) for name, prompt in words)) == ("a", "b", "c", "d")


def test_newcomers_are_put_where_the_worker_will_put_them():
    scheduler = StepScheduler()
    size = size_of(demand_of(job("runs").request, LIMITS))  # 49 forwards
    scheduler.admit("runs", rows=size.rows, remaining=size.row_forwards)
    scheduler.report("runs", work=size.rows, remaining=size.rows * 48.0)
    ours = teller()
    ours.heard(scheduler.books())
    assert order(ours, job("runs"), job("short", num_sigmas=2), job("long", num_sigmas=200)) == (
        "short",
        "runs",
        "long",
    )
    assert order(ours, job("short", num_sigmas=2)) == ("short",)  # what ended is not in the line


def test_those_that_share_a_forward_stand_first():
    scheduler = StepScheduler(max_num_seqs=2, max_step_rows=100)
    for name in "abc":
        scheduler.admit(name, rows=10, remaining=100)
        scheduler.report(name, work=10.0, remaining=90.0, batch_key="k")
    ours = teller(max_num_seqs=2)
    ours.heard(scheduler.books())
    found = ours.order([job(name) for name in "abc"], LIMITS, ready_in_s=None)
    assert (found.job_ids, found.together, found.ready_in_s) == (("a", "b", "c"), 2, None)


def test_a_job_that_the_worker_will_refuse_does_not_disturb_the_others():
    assert set(order(teller(), job("a"), job("bad", num_frames=100_000), job("b"))) == {"a", "bad", "b"}


def test_the_executor_tells_the_order_at_each_change(run, monkeypatch):  # noqa: F811
    scheduler = StepScheduler()

    def behave(link, command):
        if isinstance(command, Submit) and len(FakeLink.made) == 1:
            size = {"a": 50_000.0, "b": 40_000.0}[command.job.id]
            scheduler.admit(command.job.id, rows=1000, remaining=size)
            if command.job.id == "a":
                scheduler.report("a", work=1000.0, remaining=49_000.0)
                working(link, "a", "queued", "started")
            link.say(scheduler.books())

    orders = []
    executor = run(behave, on_order=orders.append)
    executor.submit(job("a"))
    executor.submit(job("b"))
    assert set(orders[-1].job_ids) == {"a", "b"}  # before the worker has heard of it
    executor.until(lambda: (orders[-1].job_ids, orders[-1].ready_in_s) == (("a", "b"), 0.0))

    monkeypatch.setattr(FakeLink, "start", staticmethod(lambda link: None))  # the next one loads for long
    FakeLink.made[0].say(At(("a",)))
    FakeLink.made[0].die()
    executor.until(lambda: len(FakeLink.made) == 2 and orders[-1].ready_in_s != 0.0)
    assert set(orders[-1].job_ids) == {"a", "b"}
    assert [executor.events[name][-1] for name in "ab"] == [
        JobEvent(job_id=name, kind="queued", stage=RESTARTING) for name in "ab"
    ]
    executor.submit(job("urgent", priority=9))
    assert orders[-1].job_ids[0] == "urgent"
    assert orders[-1].ready_in_s is not None  # as long as the first one took
    FakeLink.made[1].say(Ready(CostModel(step_s=0.1, row_s=1e-4, pixel_s=0.0, begin_s=0.0)), Books())
    executor.until(lambda: orders[-1].ready_in_s == 0.0)
    assert orders[-1].job_ids[0] == "urgent"
