"""The pipe to a worker: whatever the worker does, who writes to it does not wait."""

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
