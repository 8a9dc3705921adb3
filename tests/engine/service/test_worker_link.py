"""The pipe to a worker: whatever the worker does, who writes to it does not wait."""

import logging
import os
import signal
import threading
from pathlib import Path

from talkies.engine.config import EngineConfig
from talkies.engine.port.messages import Cancel, Submit, WorkerOptions
from talkies.engine.port.service import Job
from talkies.engine.service.worker_link import Link
from talkies.request import VideoRequest


def test_orders_to_a_worker_that_reads_nothing_do_not_hold_up_the_one_who_gives_them():
    link = Link(WorkerOptions(config=EngineConfig()))
    os.kill(link.pid, signal.SIGSTOP)
    request = VideoRequest(prompt="a" * 7000)

    def order():
        for i in range(100):  # more than a pipe holds
            assert link.send(Submit(Job(id=str(i), request=request, outputs=(Path("x.mp4"),))))

    orders = threading.Thread(target=order, daemon=True)
    orders.start()
    orders.join(10)
    stuck = orders.is_alive()
    link.kill()
    assert link.end() == -signal.SIGKILL
    assert not stuck
    assert not link.send(Cancel("1"))


def test_what_a_worker_prints_is_in_the_log(monkeypatch, caplog):
    """Libraries write to its stderr, and so does Python when it dies of an error."""
    caplog.set_level(logging.WARNING)
    options = WorkerOptions(config=EngineConfig())
    object.__setattr__(options, "config", Loud())  # what its loading touches first
    link = Link(options)
    link.process.join(60)
    link.end()
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("worker_link")]
    assert "worker: a library's own words" in lines
    assert "worker: 100 %" in lines  # and not each state of the bar
    assert any(line.startswith("worker: Traceback") for line in lines)
    assert any("RuntimeError: the last words" in line for line in lines)


class Loud:
    """In place of a configuration: prints when it is looked at, and fails."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        os.write(2, b"a library's own words\n10 %\r50 %\r100 %\n")
        raise RuntimeError("the last words")
