"""What the executor does when workers die: a scripted worker in place of the process, so that no model is loaded."""

import threading
import time
from collections import defaultdict
from multiprocessing import Pipe
from pathlib import Path

import pytest

from talkies.capacity.cost import CostModel
from talkies.engine.port.messages import At, Beat, Cancel, Fatal, Hello, Loading, Ready, Stats, Stop, Submit
from talkies.engine.port.service import TERMINAL, Job, JobEvent, ServiceInfo
from talkies.engine.service import executor as module
from talkies.engine.service import liveness as lifeline
from talkies.engine.service.executor import Executor
from talkies.engine.service.ledger import Ledger
from talkies.engine.service.liveness import MAX_FAILED_STARTS
from talkies.errors import CheckpointError, NotReady
from talkies.h3.geometry import Limits
from talkies.request import VideoRequest

INFO = ServiceInfo(model_name="m", model_hash="0" * 64, limits=Limits(), device="cpu", attention="sdpa", policy="fifo")
COST = CostModel(step_s=0.1, row_s=1e-4, pixel_s=0.0, begin_s=0.0)


class FakeLink:
    """A worker that lives in this thread: ``behave(link, command)`` says what it does with each order."""

    made: list = []  # noqa: RUF012
    behave = staticmethod(lambda link, command: None)
    stillborn = False
    start = staticmethod(lambda link: link.say(Hello(INFO), Ready(COST)))

    def __init__(self, options):
        self.ours, self.theirs = Pipe()
        self.pid, self.age_s, self.received, self._alive = 4711, 1.0, [], True
        FakeLink.made.append(self)
        if FakeLink.stillborn:
            self.say(Hello(INFO))
            self.die()
        else:
            FakeLink.start(self)

    def say(self, *messages):
        for message in messages:
            self.theirs.send(message)

    def die(self):
        self._alive = False
        self.theirs.close()

    kill = die

    def waitables(self):
        return [self.ours]

    def send(self, command):
        if not self._alive:
            return False
        self.received.append(command)
        if isinstance(command, Stop):
            self.die()
        else:
            FakeLink.behave(self, command)
        return True

    def receive(self):
        messages = []
        try:
            while self.ours.poll():
                messages.append(self.ours.recv())
        except EOFError:
            pass
        return messages

    def alive(self):
        return self._alive

    def end(self):
        self.ours.close()
        return -9


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Starts an executor over fake workers that behave as told; returns it with its events."""
    monkeypatch.setattr(module, "Link", FakeLink)
    monkeypatch.setattr(lifeline, "BACKOFF_S", 0.005)
    monkeypatch.setattr(FakeLink, "made", [])
    monkeypatch.setattr(FakeLink, "stillborn", False)
    running = []

    def start(behave=lambda link, command: None, on_order=None, **options):
        monkeypatch.setattr(FakeLink, "behave", staticmethod(behave))
        executor, events, changed = Executor(None, **options), defaultdict(list), threading.Condition()

        def on_event(event):
            with changed:
                events[event.job_id].append(event)
                changed.notify_all()

        def wait(*names):
            def ended():
                return all(events[n] and events[n][-1].kind in TERMINAL for n in names)

            with changed:
                assert changed.wait_for(ended, 10), dict(events)
            return [events[n][-1] for n in names]

        def until(condition):
            deadline = time.monotonic() + 10
            while not condition():
                assert time.monotonic() < deadline, dict(events)
                time.sleep(0.005)

        executor.start(on_event, on_order)
        running.append(executor)
        executor.wait, executor.until, executor.events = wait, until, events
        return executor

    yield start
    for executor in running:
        executor.close(timeout_s=1.0)


def job(name, tmp_path):
    return Job(id=name, request=VideoRequest(prompt=name), outputs=(tmp_path / f"{name}.mp4",))


def working(link, name, *kinds):
    link.say(At((name,)), *(JobEvent(job_id=name, kind=kind) for kind in kinds))


def obedient(link, command):
    """Finishes everything at once, but dies over a job called deadly."""
    if not isinstance(command, Submit):
        return
    name = command.job.id
    if name == "deadly":
        working(link, name, "started")
        link.die()
    else:
        working(link, name, "started", "finished")


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_job_over_which_two_workers_die_fails_and_the_others_go_on(run, tmp_path):
    executor = run(obedient)
    for name in ("deadly", "a", "b"):
        executor.submit(job(name, tmp_path))
    deadly, a, b = executor.wait("deadly", "a", "b")
    assert (deadly.kind, a.kind, b.kind) == ("failed", "finished", "finished")
    assert deadly.error["code"] == "worker_died"
    assert deadly.error["status"] == 500
    assert "2 times" in deadly.error["message"]
    assert executor.metrics()["worker_restarts_total"] == 2


def test_only_the_job_in_work_is_blamed(run, tmp_path):
    """A preempted job that has begun may see any number of deaths."""

    def behave(link, command):
        if isinstance(command, Submit) and command.job.id == "bystander":
            link.say(JobEvent(job_id="bystander", kind="started"))
        if isinstance(command, Submit) and command.job.id.startswith("deadly"):
            working(link, command.job.id)
            link.die()
        if isinstance(command, Submit) and command.job.id == "last":
            link.say(JobEvent(job_id="last", kind="finished"), JobEvent(job_id="bystander", kind="finished"))

    executor = run(behave)
    for name in ("bystander", "deadly1", "deadly2", "deadly3", "last"):
        executor.submit(job(name, tmp_path))
    ends = executor.wait("bystander", "deadly1", "deadly2", "deadly3", "last")
    assert [e.kind for e in ends] == ["finished", "failed", "failed", "failed", "finished"]
    assert executor.metrics()["worker_restarts_total"] == 6


def test_a_cancelled_job_is_not_given_to_the_next_worker(run, tmp_path):
    def behave(link, command):
        if isinstance(command, Submit) and command.job.id == "a":
            working(link, "a", "started")
        if isinstance(command, Cancel):
            link.die()

    executor = run(behave)
    executor.submit(job("a", tmp_path))
    until(lambda: executor.events["a"])
    executor.cancel("a")
    executor.cancel("a")
    (end,) = executor.wait("a")
    assert end.kind == "cancelled"
    until(lambda: len(FakeLink.made) == 2)
    assert not any(isinstance(c, Submit) for c in FakeLink.made[1].received)


def test_a_job_cancelled_between_two_workers_ends_at_once(run, tmp_path, monkeypatch):
    monkeypatch.setattr(lifeline, "BACKOFF_S", 1000.0)
    monkeypatch.setattr(lifeline, "MAX_BACKOFF_S", 1000.0)
    executor = run(obedient)
    executor.submit(job("deadly", tmp_path))
    until(lambda: executor.state == "loading" and executor.metrics()["worker_restarts_total"] == 1)
    executor.cancel("deadly")
    (end,) = executor.wait("deadly")
    assert end.kind == "cancelled"
    assert len(FakeLink.made) == 1


def test_a_cancel_that_no_worker_heard_is_said_when_the_next_one_starts():
    ledger = Ledger()
    heard = []
    ledger.on_event = heard.append
    ledger.add(job("a", Path()))
    ledger.deliver(JobEvent(job_id="a", kind="started"))
    ledger.cancel("a", worker_listens=True)  # it died before it read that
    ledger.renew_orders()
    assert ledger.next_order() is None
    ledger.deliver_own()
    assert [e.kind for e in heard] == ["started", "cancelled"]
    assert len(ledger) == 0


def test_a_job_ends_once_whatever_a_worker_says(run, tmp_path):
    def behave(link, command):
        if isinstance(command, Submit):
            events = ("finished", "finished", "failed", "progress")
            working(link, command.job.id, *events)

    executor = run(behave)
    executor.submit(job("a", tmp_path))
    executor.wait("a")
    executor.submit(job("b", tmp_path))
    executor.wait("b")
    assert [e.kind for e in executor.events["a"]] == ["finished"]


def test_what_a_dying_worker_said_is_heard(run, tmp_path):
    def behave(link, command):
        if isinstance(command, Submit):
            working(link, command.job.id, "started", "finished")
            link.die()

    executor = run(behave)
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.kind == "finished"


def test_starts_that_never_work_end_in_dead(run, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeLink, "stillborn", True)
    executor = run()
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.error["code"] == "worker_died"
    assert executor.state == "dead"
    assert len(FakeLink.made) == MAX_FAILED_STARTS
    with pytest.raises(NotReady):
        executor.submit(job("b", tmp_path))
    assert executor.info == INFO  # that much it had said


def test_a_start_says_where_it_stands(run):
    def behave(link, command):
        pass

    executor = run(behave)
    until(lambda: executor.state == "ready")
    assert executor.loading_stage is None
    FakeLink.made[0].say(Loading("text encoder"))
    FakeLink.made[0].die()
    until(lambda: executor.loading_stage == "text encoder" or executor.state == "ready")


def unable(link):
    """It could not start, and says why before it ends."""
    while link.ours.poll():
        link.ours.recv()  # it never was ready
    link.say(Hello(INFO), Fatal(CheckpointError("weights are gone", param="model")))
    link.die()


def test_a_fatal_error_is_not_tried_again(run, tmp_path, monkeypatch):
    made = FakeLink.__init__
    monkeypatch.setattr(FakeLink, "__init__", lambda link, options: (made(link, options), unable(link))[0])
    executor = run()
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.error["code"] == "invalid_checkpoint"
    assert executor.state == "dead"
    with pytest.raises(NotReady, match="weights are gone"):
        executor.submit(job("b", tmp_path))
    assert len(FakeLink.made) == 1


@pytest.mark.parametrize("tries", [2, 99])
def test_what_served_before_is_tried_again_and_the_queue_waits(run, tmp_path, monkeypatch, tries):
    """Memory that another process took for a moment, a folder that is being replaced."""
    made = FakeLink.__init__

    def make(link, options):
        made(link, options)
        if 1 < len(FakeLink.made) <= 1 + tries:
            unable(link)

    executor = run(obedient)
    until(lambda: executor.state == "ready")
    monkeypatch.setattr(FakeLink, "__init__", make)
    FakeLink.made[0].die()
    until(lambda: executor.metrics()["worker_restarts_total"])
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    if tries == 2:
        assert end.kind == "finished"
    else:
        assert (end.error["code"], executor.state) == ("invalid_checkpoint", "dead")
        assert len(FakeLink.made) == 1 + MAX_FAILED_STARTS


def test_counts_go_on_over_restarts(run, tmp_path):
    def behave(link, command):
        if isinstance(command, Submit):
            link.say(Stats({"forwards_total": 5.0, "rss_bytes": 100.0}))
            obedient(link, command)

    executor = run(behave)
    for name in ("deadly", "a"):
        executor.submit(job(name, tmp_path))
    executor.wait("deadly", "a")
    executor.submit(job("b", tmp_path))
    executor.wait("b")
    metrics = executor.metrics()
    assert metrics["forwards_total"] == 15.0  # the last figures of three workers
    assert metrics["rss_bytes"] == 100.0
    assert executor.predict_seconds(executor.demand_of(VideoRequest(prompt="x"))) > 0


@pytest.mark.parametrize("error", [OSError(11, "Resource temporarily unavailable"), RuntimeError("no new thread")])
def test_a_worker_that_cannot_be_started_is_tried_again(run, tmp_path, monkeypatch, error):
    tries = []

    def make(options):
        tries.append(1)
        if len(tries) < 3:
            raise error
        return FakeLink(options)

    executor = run(obedient)
    until(lambda: executor.state == "ready")
    monkeypatch.setattr(module, "Link", make)
    FakeLink.made[0].die()
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.kind == "finished"
    assert len(tries) == 3
    assert executor._starts._failures_in_row == 3  # so each try came later than the one before


def test_a_worker_that_hangs_is_killed_and_its_job_goes_on(run, tmp_path):
    hung = []

    def behave(link, command):
        if isinstance(command, Submit) and not hung:
            hung.append(command.job.id)
            link.say(At((command.job.id,)), Beat(0.01), JobEvent(job_id=command.job.id, kind="started"))
        else:
            obedient(link, command)  # the second worker does not hang

    executor = run(behave, hang_timeout_s=1.0)
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.kind == "finished"
    assert len(FakeLink.made) == 2
    metrics = executor.metrics()
    assert (metrics["worker_hangs_total"], metrics["worker_restarts_total"]) == (1, 1)


def test_a_job_over_which_two_workers_hang_fails_and_says_so(run, tmp_path):
    def behave(link, command):
        if isinstance(command, Submit) and command.job.id == "stuck":
            link.say(At(("stuck",)), JobEvent(job_id="stuck", kind="started"))
        else:
            obedient(link, command)

    executor = run(behave, hang_timeout_s=0.2)
    executor.submit(job("stuck", tmp_path))
    (end,) = executor.wait("stuck")
    assert (end.error["code"], end.error["status"]) == ("worker_hung", 500)
    assert "no sign of life" in end.error["message"]
    assert "2 times" in end.error["message"]
    executor.submit(job("next", tmp_path))
    assert executor.wait("next")[0].kind == "finished"


def test_an_idle_worker_that_does_not_answer_is_hung_too(run, tmp_path):
    """Nobody watches it while it has nothing to do; a job that it does not take must not wait for ever."""

    def behave(link, command):
        if link is not FakeLink.made[0]:
            obedient(link, command)

    executor = run(behave, hang_timeout_s=1.0)
    until(lambda: executor.state == "ready")
    time.sleep(1.5)
    assert len(FakeLink.made) == 1
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.kind == "finished"
    assert executor.metrics()["worker_hangs_total"] == 1


def test_a_slow_worker_that_gives_signs_of_life_is_let_be(run, tmp_path):
    done = threading.Event()

    def behave(link, command):
        if isinstance(command, Submit):
            link.say(At((command.job.id,)), JobEvent(job_id=command.job.id, kind="started"))

            def work():
                for _ in range(12):  # twice the timeout in all; each pause a fifth of it, for machines that are busy
                    time.sleep(0.2)
                    link.say(Beat())
                link.say(JobEvent(job_id=command.job.id, kind="finished"), At(()))
                done.set()

            threading.Thread(target=work, daemon=True).start()

    executor = run(behave, hang_timeout_s=1.0)
    executor.submit(job("a", tmp_path))
    (end,) = executor.wait("a")
    assert end.kind == "finished"
    assert done.wait(5)
    time.sleep(1.5)  # idle: nothing to say, nothing to fear
    assert len(FakeLink.made) == 1
    assert executor.metrics()["worker_hangs_total"] == 0


def test_a_start_that_hangs_is_given_up_with_the_stage_it_stood_in(run, monkeypatch):
    def stuck(link):
        link.say(Hello(INFO), Loading("weights of fl2va"), Loading("text encoder"))

    monkeypatch.setattr(FakeLink, "start", staticmethod(stuck))
    executor = run(start_timeout_s=0.3)
    until(lambda: executor.state == "dead")
    with pytest.raises(NotReady, match=r"no sign of life for \d+ s and was killed while it loaded: text encoder"):
        executor.submit(job("late", Path()))
    assert [link.alive() for link in FakeLink.made] == [False]


def test_a_worker_that_hangs_in_a_later_start_is_replaced_and_the_queue_waits(run, tmp_path, monkeypatch):
    def start(link):
        link.say(Hello(INFO), Loading("warm-up"))
        if len(FakeLink.made) != 2:
            link.say(Ready(COST))

    def behave(link, command):
        if link is FakeLink.made[0]:
            link.die()
        elif len(FakeLink.made) == 3:
            obedient(link, command)

    monkeypatch.setattr(FakeLink, "start", staticmethod(start))
    executor = run(behave, start_timeout_s=1.0)
    executor.submit(job("a", tmp_path))
    assert executor.wait("a")[0].kind == "finished"
    assert len(FakeLink.made) == 3
    assert executor.metrics()["worker_hangs_total"] == 1


def test_a_hub_may_take_as_long_as_it_needs_to_send_a_model(monkeypatch):
    """A worker says what it is when it has the files, which may take hours; that is no silence of a loading one."""
    monkeypatch.setattr(module, "Link", FakeLink)
    monkeypatch.setattr(FakeLink, "made", [])
    monkeypatch.setattr(FakeLink, "start", staticmethod(lambda link: None))
    executor = Executor(None, start_timeout_s=0.1)
    threading.Timer(0.6, lambda: FakeLink.made[0].say(Hello(INFO), Ready(COST))).start()
    assert executor.info == INFO
    executor.close(timeout_s=1.0)


def test_a_close_ends_the_wait_for_a_model(monkeypatch):
    monkeypatch.setattr(module, "Link", FakeLink)
    monkeypatch.setattr(FakeLink, "made", [])
    monkeypatch.setattr(FakeLink, "start", staticmethod(lambda link: None))
    executor = Executor(None)
    threading.Timer(0.2, executor.close).start()
    with pytest.raises(NotReady, match="did not say what it serves"):
        _ = executor.info


def test_the_pump_outlives_whatever_one_turn_raises(run, tmp_path, monkeypatch):
    """It is the one thread that talks to the worker: without it jobs would be accepted and never run."""
    real, raised = FakeLink.receive, []

    def receive(link):
        if link.received and not raised:
            raised.append(1)
            raise ValueError("a word that nobody understands")
        return real(link)

    monkeypatch.setattr(FakeLink, "receive", receive)
    executor = run(obedient)
    executor.submit(job("a", tmp_path))
    assert executor.wait("a")[0].kind == "finished"
    assert raised


def test_closing_before_the_start_is_quiet():
    executor = Executor(None)
    executor.close()
    assert executor.state == "dead"
    executor.cancel("nobody")
