"""The executor over real worker processes: deaths, restarts, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

import pytest

from talkies.engine.config import EngineConfig
from talkies.engine.port.service import TERMINAL, EngineService, Job
from talkies.engine.service.executor import Executor
from talkies.errors import CheckpointError, InvalidRequest, NotReady
from talkies.request import Condition, Target, VideoRequest

PATIENCE_S = 120.0  # a loaded machine imports torch slowly


class Client:
    """Starts an executor, collects its events, and may act on them as they come.

    One thread: two would wait for each other on a loaded machine.
    """

    def __init__(self, folder, root, **options):
        self.root, self.events, self.on_event = root, defaultdict(list), lambda event: None
        self.changed = threading.Condition()
        self.executor = Executor(EngineConfig(model=str(folder), threads=1), **options)
        self.executor.start(self._on_event)

    def _on_event(self, event):
        with self.changed:
            self.events[event.job_id].append(event)
            self.changed.notify_all()
        self.on_event(event)

    def submit(self, name, **changes):
        request = VideoRequest(**{"prompt": name, "num_sigmas": 4, "target": Target(num_frames=22), **changes})
        outputs = tuple(self.root / f"{name}-{i}.mp4" for i in range(request.num_outputs))
        job = Job(id=name, request=request, outputs=outputs, resume_dir=self.root / "resume" / name)
        self.executor.submit(job)
        return job

    def wait(self, *names):
        """The last event of each."""
        with self.changed:
            done = self.changed.wait_for(lambda: all(self.ended(name) for name in names), PATIENCE_S)
        assert done, {name: [e.kind for e in self.events[name]] for name in names}
        return [self.events[name][-1] for name in names]

    def ended(self, name):
        return bool(self.events[name]) and self.events[name][-1].kind in TERMINAL

    def kinds(self, name):
        return Counter(e.kind for e in self.events[name])

    def until_ready(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.executor.state == "loading":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill_worker_at(self, name, step):
        """SIGKILL when ``name`` has done ``step``; once per call."""
        self._signal_worker_at(name, step, signal.SIGKILL)

    def stop_worker_at(self, name, step, *, times=1):
        self._signal_worker_at(name, step, signal.SIGSTOP, times)

    def _signal_worker_at(self, name, step, signum, times=1):
        """``times``: as many different workers."""
        signalled = set()

        def act(event):
            if event.job_id != name or event.stage != "denoise" or (event.step or 0) < step:
                return
            pid = self.executor.worker_pid
            if pid not in signalled and len(signalled) < times:
                signalled.add(pid)
                os.kill(pid, signum)

        self.on_event = act


@pytest.fixture(scope="module")
def client(tiny_folder, tmp_path_factory):
    client = Client(tiny_folder, tmp_path_factory.mktemp("executor"), save_every_s=0.0)
    client.submit("early")
    client.executor.cancel("early")
    client.wait("early")
    client.state_after_early = client.executor.state
    client.until_ready()
    yield client
    client.executor.close()


@pytest.fixture(autouse=True)
def _calm(client):
    yield
    client.on_event = lambda event: None


def test_it_is_the_service_that_the_server_knows(client):
    service: EngineService = client.executor
    assert service.state == "ready"
    assert service.info.limits.canvas_short_edge == 64
    assert service.predict_seconds(service.demand_of(VideoRequest(prompt="x"))) > 0
    with pytest.raises(InvalidRequest, match="seconds=99"):
        service.demand_of(VideoRequest(prompt="x", target=Target(seconds=99)))
    service.cancel("nobody")


def test_a_job_cancelled_while_the_model_loads_ends_at_once(client):
    assert client.state_after_early == "loading"
    assert client.kinds("early") == Counter(cancelled=1)


def test_a_killed_worker_costs_no_job_and_changes_no_byte(client):
    whole = client.submit("whole", num_sigmas=30, seed=3)
    client.wait("whole")
    client.kill_worker_at("broken", 10)
    restarts = client.executor.metrics()["worker_restarts_total"]
    broken = client.submit("broken", prompt="whole", num_sigmas=30, seed=3)
    # No shorter than what runs, so that they are still waiting when it happens.
    waiting = [client.submit(f"waiting{i}", num_sigmas=30, seed=i) for i in range(2)]
    ends = client.wait("broken", "waiting0", "waiting1")
    assert [e.kind for e in ends] == ["finished"] * 3
    assert client.executor.metrics()["worker_restarts_total"] == restarts + 1
    assert client.kinds("broken")["resumed"] == 1
    resumed = next(e for e in client.events["broken"] if e.kind == "resumed")
    assert resumed.step >= 9
    assert broken.outputs[0].read_bytes() == whole.outputs[0].read_bytes()
    assert all(job.outputs[0].is_file() for job in waiting)
    assert client.kinds("waiting0")["started"] == 1


def test_a_cancel_reaches_the_worker_between_steps(client):
    client.until_ready()
    seen = []

    def act(event):
        if event.job_id == "stop" and event.stage == "denoise" and event.kind == "progress":
            if not seen:
                client.executor.cancel("stop")
            seen.append(event.step)

    client.on_event = act
    job = client.submit("stop", num_sigmas=200, target=Target(num_frames=124))
    (end,) = client.wait("stop")
    assert end.kind == "cancelled"
    assert len(seen) < 100  # the order travels while steps of a few milliseconds run
    assert not job.outputs[0].exists()


def test_mixed_jobs_each_end_once_and_memory_stays_flat(client):
    client.until_ready()

    def batch(tag):
        missing = Condition(kind="image", uri="/nowhere.png", role="first")
        names = []
        for i in range(6):
            name = f"{tag}{i}"
            names.append(name)
            if i == 2:
                client.submit(name, conditions=(missing,))
            elif i == 4:
                client.submit(name, num_sigmas=200)
                client.executor.cancel(name)
            else:
                client.submit(name, num_sigmas=3 + i, target=Target(num_frames=22 if i % 2 else 39))
        return names

    def rss():
        time.sleep(0.3)  # the figure is sent when the worker becomes idle
        return client.executor.metrics()["rss_bytes"]

    client.wait(*batch("warm"))
    before = rss()
    names = batch("x") + batch("y")
    ends = [e.kind for e in client.wait(*names)]
    assert ends == ["finished", "finished", "failed", "finished", "cancelled", "finished"] * 2
    assert all(sum(client.kinds(name)[k] for k in TERMINAL) == 1 for name in names)
    assert rss() - before < 24 << 20
    assert client.executor.metrics()["jobs"] == 0


@pytest.mark.slow
def test_a_stopped_worker_is_replaced_and_changes_no_byte(tiny_folder, tmp_path, client):
    """SIGSTOP is a hang that nobody announces: the process is there and does nothing."""
    whole = client.submit("unhung", num_sigmas=30, seed=3)
    client.wait("unhung")
    hanging = Client(tiny_folder, tmp_path, save_every_s=0.0, hang_timeout_s=2.0)
    try:
        hanging.until_ready()
        hanging.stop_worker_at("broken", 10)
        broken = hanging.submit("broken", prompt="unhung", num_sigmas=30, seed=3)
        (end,) = hanging.wait("broken")
        assert end.kind == "finished"
        assert hanging.kinds("broken")["resumed"] == 1
        metrics = hanging.executor.metrics()
        assert (metrics["worker_hangs_total"], metrics["worker_restarts_total"]) == (1, 1)
        assert broken.outputs[0].read_bytes() == whole.outputs[0].read_bytes()

        hanging.stop_worker_at("stuck", 10, times=2)
        hanging.submit("stuck", num_sigmas=30)
        hanging.submit("other")
        stuck, other = hanging.wait("stuck", "other")
        assert (stuck.error["code"], other.kind) == ("worker_hung", "finished")
    finally:
        hanging.executor.close()


def test_a_listener_that_raises_does_not_stop_the_others(client):
    def act(event):
        raise RuntimeError("a listener's own fault")

    client.on_event = act
    client.submit("heard", num_sigmas=3)
    (end,) = client.wait("heard")
    assert end.kind == "finished"


def test_a_model_that_is_not_there_is_dead_at_once(tmp_path):
    client = Client(tmp_path / "nothing", tmp_path)
    with pytest.raises(CheckpointError, match="nothing"):
        _ = client.executor.info
    assert client.executor.state == "dead"
    with pytest.raises(NotReady, match="nothing"):
        client.submit("a")
    client.executor.close()


def test_a_request_is_counted_by_the_checkpoints_own_tokenizer_without_torch(tiny_folder, tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from talkies.engine.service.executor import Executor\n"
        "from talkies.h3.geometry import Limits\n"
        "from talkies.request import VideoRequest\n"
        "service = Executor(None)\n"
        "service.info = SimpleNamespace(limits=Limits(), tokenizer=Path(sys.argv[1]))\n"
        "print(service.demand_of(VideoRequest(prompt='a ball')).prompt_tokens, 'torch' in sys.modules)\n"
    )
    run = [sys.executable, "-c", code, str(tiny_folder / "tokenizer")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["6", "False"]  # a token a byte


def test_importing_the_executor_does_not_import_torch():
    code = "import sys, talkies.engine.service.executor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_worker_does_not_outlive_its_parent(tiny_folder, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from talkies.engine.config import EngineConfig\n"
        "from talkies.engine.service.executor import Executor\n"
        "if __name__ == '__main__':\n"
        "    executor = Executor(EngineConfig(model=sys.argv[1]))\n"
        "    executor.info\n"
        "    print(executor.worker_pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script), str(tiny_folder)], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert _exists(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while _exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _exists(pid)


def test_close_ends_jobs_and_process_and_is_repeatable(client):
    """The last one: the service of this file ends here."""
    client.until_ready()
    client.submit("running", num_sigmas=200, target=Target(num_frames=124))
    client.submit("behind", num_sigmas=200, target=Target(num_frames=158))
    pid = client.executor.worker_pid
    with client.changed:
        assert client.changed.wait_for(lambda: client.kinds("running")["progress"] > 4, PATIENCE_S)
    client.executor.close()
    client.executor.close()
    assert client.executor.state == "dead"
    assert {e.kind for e in client.wait("running", "behind")} == {"failed"}
    assert not _exists(pid)
    assert list((client.root / "resume" / "running").iterdir())  # saved on the way out
    with pytest.raises(NotReady):
        client.submit("late")


def _exists(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
