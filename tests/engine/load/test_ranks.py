"""One engine over two processes that share the DiT's blocks: the same clip, the same bytes again, and clean ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from talkies import Engine
from talkies.engine.config import EngineConfig
from talkies.engine.load import build
from talkies.engine.port.service import TERMINAL, Job
from talkies.engine.service.executor import Executor
from talkies.errors import CheckpointError, ConfigError, WorkerDied
from talkies.request import Target, VideoRequest

REQUEST = VideoRequest(
    prompt="a red ball bounces slowly with a bell sound", num_sigmas=6, target=Target(num_frames=22), seed=3
)


def psnr_db(a, b):
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return np.inf if error == 0 else 10 * np.log10(255**2 / error)


@pytest.fixture(scope="module")
def alone():
    return Engine.open_config(EngineConfig(threads=1)).generate(REQUEST)


@pytest.fixture(scope="module")
def shared():
    engine = Engine.open_config(EngineConfig(threads=1, tensor_parallel=2))
    yield engine
    engine.close()


@pytest.mark.timeout(120)
def test_two_ranks_make_the_clip_of_one(alone, shared):
    clip = shared.generate(REQUEST)
    assert psnr_db(clip.frames, alone.frames) > 50
    assert np.abs(clip.audio - alone.audio).max() < 1e-3
    again = shared.generate(REQUEST)
    assert np.array_equal(again.frames, clip.frames)
    assert np.array_equal(again.audio, clip.audio)
    # The follower has the step cache of the request, too: one that ran alone would wait for the other.
    medium = shared.generate(REQUEST.replace(num_sigmas=20, quality="medium"))
    assert medium.facts.skipped_fraction > 0.5
    assert medium.facts.step_cache["policy"] == "forecast"


@pytest.mark.timeout(120)
def test_a_second_one_in_the_same_process_is_refused_and_nothing_of_it_stays(shared):
    with pytest.raises(ConfigError, match="is open in this process already"):
        Engine.open_config(EngineConfig(threads=1, tensor_parallel=2))
    assert shared.components.broken is None


def test_a_degree_that_divides_nothing_is_refused_before_a_process_is_started(shared):
    with pytest.raises(ConfigError, match="tensor_parallel=3 does not divide 8 heads") as caught:
        Engine.open_config(EngineConfig(threads=1, tensor_parallel=3))
    assert "1, 2, 4, 8" in caught.value.hint
    with pytest.raises(ConfigError, match="tensor_parallel=0 is outside"):
        EngineConfig(tensor_parallel=0)


@pytest.mark.timeout(120)
def test_the_end_of_a_rank_ends_the_request_with_its_reason_and_the_engine(alone, shared):
    """Last: it closes the shared engine. In fp8, with streamed blocks."""
    shared.close()
    engine = Engine.open_config(EngineConfig(threads=1, tensor_parallel=2, quantization="fp8", offload="layer"))
    try:
        clip = engine.generate(REQUEST)
        assert psnr_db(clip.frames, alone.frames) > 35
        follower = engine.components.ranks.processes[0]
        os.kill(follower.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerDied):
            engine.generate(REQUEST.replace(seed=4, prompt="another prompt"))
        assert time.monotonic() - began < 20
        assert engine.components.broken
        with pytest.raises(WorkerDied, match="ranks of this engine ended"):
            engine.generate(REQUEST)
    finally:
        engine.close()
    assert all(process.poll() is not None for process in engine.components.ranks.processes)


@pytest.mark.timeout(120)
def test_a_start_that_fails_later_leaves_no_rank_behind(shared, monkeypatch):
    """After the one above, which has closed the shared engine."""
    shared.close()
    started = []

    def fails(*args, **kwargs):
        started.extend(_followers_of(os.getpid()))
        raise CheckpointError("the text encoder is broken")

    monkeypatch.setattr(build, "build_text", fails)
    for _ in range(2):  # the second one is not told that a group is open already
        with pytest.raises(CheckpointError, match="text encoder is broken"):
            Engine.open_config(EngineConfig(threads=1, tensor_parallel=2))
    assert len(started) == 2
    assert not any(_alive(pid) for pid in started)


@pytest.mark.timeout(240)
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds processes in /proc")
@pytest.mark.slow
def test_a_server_whose_rank_is_killed_starts_all_of_them_anew_and_ends_the_job(tmp_path):
    events, changed = [], threading.Condition()
    killed = []

    def on_event(event):
        with changed:
            events.append(event)
            changed.notify_all()
        if event.kind == "progress" and event.step == 2 and not killed:
            killed.append(_followers_of(executor.worker_pid)[0])
            os.kill(killed[0], signal.SIGKILL)

    executor = Executor(EngineConfig(threads=1, tensor_parallel=2))
    try:
        executor.start(on_event)
        request = REQUEST.replace(num_sigmas=9)
        executor.submit(Job(id="a", request=request, outputs=(tmp_path / "a.mp4",), resume_dir=tmp_path / "resume"))
        with changed:
            assert changed.wait_for(lambda: events and events[-1].kind in TERMINAL, 200.0), [e.kind for e in events]
        assert killed
        assert events[-1].kind == "finished", events[-1]
        assert (tmp_path / "a.mp4").stat().st_size > 1000
        left = _followers_of(executor.worker_pid)
        assert len(left) == 1
    finally:
        executor.close(timeout_s=20.0)
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in (*killed, *left)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(_alive(pid) for pid in (*killed, *left))


def _followers_of(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == pid and b"talkies.engine.pipeline.rank_main" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def _alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
