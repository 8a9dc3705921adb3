"""The worker's loop, in this process: orders go in through the inbox, events come out of ``send``."""

import gc
import math
import queue
import threading
import time
import weakref
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.capacity.demand import demand_of
from talkies.capacity.headers import header_of
from talkies.engine.config import EngineConfig
from talkies.engine.load import build
from talkies.engine.pipeline.condition_media import check_media_root
from talkies.engine.pipeline.resume import ResumeFile
from talkies.engine.port.messages import (
    At,
    Beat,
    Books,
    Cancel,
    Hello,
    Learned,
    Loading,
    Ready,
    Room,
    Stats,
    Submit,
    WorkerOptions,
)
from talkies.engine.port.service import TERMINAL, Job, JobEvent
from talkies.engine.worker import loop as worker
from talkies.engine.worker.loop import Worker
from talkies.engine.worker.scheduler import StepScheduler
from talkies.errors import CheckpointError, MediaError
from talkies.request import Condition, Target, VideoRequest


class Rig:
    """A worker that runs until every job it was given has ended. ``on_event`` may give it more orders."""

    def __init__(self, folder, root, **options):
        values = {"policy": "fifo", "save_every_s": 1e9, "preview_every_s": 1e9, **options}
        self.root, self.inbox, self.messages = root, queue.SimpleQueue(), []
        self.events = defaultdict(list)
        self.open, self.on_event = set(), None
        self.worker = Worker(
            WorkerOptions(config=EngineConfig(model=str(folder), threads=1), **values), self.inbox, self._send
        )
        self.worker.load()

    def _send(self, message):
        self.messages.append(message)
        if not isinstance(message, JobEvent):
            return
        self.events[message.job_id].append(message)
        if self.on_event is not None:
            self.on_event(message)
        if message.kind in TERMINAL:
            self.open.discard(message.job_id)
            if not self.open:
                self.inbox.put(None)

    def job(self, name, request=None, **changes):
        request = request or VideoRequest(
            **{"prompt": name, "num_sigmas": 4, "target": Target(num_frames=22), **changes}
        )
        outputs = tuple(self.root / f"{name}-{i}.mp4" for i in range(request.num_outputs))
        return Job(id=name, request=request, outputs=outputs, resume_dir=self.root / "resume" / name)

    def submit(self, job):
        self.open.add(job.id)
        self.inbox.put(Submit(job))

    def run(self, *jobs, on_event=None):
        self.on_event = on_event
        for job in jobs:
            self.submit(job)
        self.worker.run()
        return [self.kinds(job.id) for job in jobs]

    def kinds(self, name):
        return [e.kind for e in self.events[name]]

    def last(self, name):
        return self.events[name][-1]

    def forwards(self, name):
        return sum(e.kind == "progress" and e.stage == "denoise" for e in self.events[name])

    def leftovers(self):
        """Files that are no finished clips."""
        return [p for p in self.root.rglob("*") if p.is_file() and p.suffix != ".mp4"]


@pytest.fixture(scope="module", autouse=True)
def _loaded_once(tiny_folder):
    """One load and one warm-up for all rigs; a folder of another name is loaded for real."""
    kept = {}

    def remember(function, key_of):
        def call(argument, **_):
            key = (function.__name__, key_of(argument))
            if key not in kept:
                kept[key] = function(argument)
            return kept[key]

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load", remember(build.load, lambda config: config.model))
        patch.setattr(worker, "warm_up", remember(worker.warm_up, lambda components: components.model_hash))
        yield


@pytest.fixture
def rig(tiny_folder, tmp_path):
    return Rig(tiny_folder, tmp_path)


@pytest.fixture(scope="module")
def plain(tiny_folder):
    """The engine without any scheduling: what every clip is compared with."""
    return Engine.open(tiny_folder, threads=1)


def rendered(plain, job, tmp_path):
    paths = [tmp_path / f"plain-{i}.mp4" for i in range(job.request.num_outputs)]
    plain.render(job.request, paths)
    return [path.read_bytes() for path in paths]


def written(job):
    return [path.read_bytes() for path in job.outputs]


def test_it_says_who_it_is_before_it_loads_and_what_it_costs_after(rig):
    hello, *stages, ready = rig.messages
    assert isinstance(hello, Hello)
    assert stages == [Loading("warm-up")]  # the loading itself is shared by these tests
    assert hello.info.limits.min_frames == 22
    assert len(hello.info.model_hash) == 64
    assert "/" not in hello.info.model_name
    assert isinstance(ready, Ready)
    assert ready.cost.row_s > 0
    assert ready.cost.pixel_s > 0


def test_a_clip_equals_the_plain_engines_byte_for_byte(rig, plain, tmp_path):
    job = rig.job("a", num_outputs=2)
    (kinds,) = rig.run(job)
    assert written(job) == rendered(plain, job, tmp_path)
    assert kinds[:2] == ["queued", "started"]
    assert Counter(kinds)["finished"] == 1
    assert kinds[-1] == "finished"
    assert rig.leftovers() == []
    facts = rig.last("a").facts
    assert (facts.size, facts.frames, facts.num_forwards, facts.task) == ("96x64", 22, 3, "t2va")
    assert set(facts.stages_s) == {"prepare", "encode", "denoise", "decode", "mux"}
    fractions = [e.fraction for e in rig.events["a"] if e.kind == "progress"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert rig.forwards("a") == 6
    assert all(e.eta_s >= 0 for e in rig.events["a"] if e.stage == "denoise")
    assert any(isinstance(m, Learned) for m in rig.messages)


def test_it_says_the_order_of_its_jobs_whenever_it_changes(tiny_folder, tmp_path):
    rig = Rig(tiny_folder, tmp_path, policy="shortest-remaining")
    long, waiting, short = rig.job("long", num_sigmas=30), rig.job("waiting", num_sigmas=40), rig.job("short")

    def overtake(event):
        if event.job_id == "long" and event.stage == "denoise" and event.step == 2 and "short" not in rig.open:
            rig.submit(short)

    rig.run(long, waiting, on_event=overtake)
    lines = []
    for message in rig.messages:
        if isinstance(message, Books):
            line = StepScheduler.of(message, "shortest-remaining").line()
            if line != (lines or [()])[-1]:
                lines.append(line)
    assert lines == [("long", "waiting"), ("short", "long", "waiting"), ("long", "waiting"), ("waiting",)]
    own = [e.eta_s for e in rig.events["long"] if e.stage == "denoise"]
    assert own[-1] < own[2]  # of itself alone, though others went between
    decode = [e.eta_s for e in rig.events["long"] if e.stage == "decode"]
    assert decode == sorted(decode, reverse=True)
    assert decode[-1] == 0.0


@pytest.mark.parametrize("step", [1, 3])
def test_after_a_cancel_there_is_no_further_forward(rig, step):
    job, other = rig.job("a", num_sigmas=9), rig.job("b")

    def cancel(event):
        if event.job_id == "a" and event.stage == "denoise" and event.step == step:
            rig.inbox.put(Cancel("a"))
            rig.inbox.put(Cancel("a"))  # twice is once

    kinds, others = rig.run(job, other, on_event=cancel)
    assert kinds[-1] == "cancelled"
    assert rig.forwards("a") == step
    assert others[-1] == "finished"
    assert not job.outputs[0].exists()
    assert rig.leftovers() == []


def test_a_cancel_while_waiting_or_unknown_is_quiet(rig):
    a, b = rig.job("a"), rig.job("b")

    def cancel(event):
        if event.job_id == "a" and event.kind == "started":
            rig.inbox.put(Cancel("b"))
            rig.inbox.put(Cancel("nobody"))

    kinds, others = rig.run(a, b, on_event=cancel)
    assert kinds[-1] == "finished"
    assert others == ["queued", "cancelled"]


def test_a_cancel_during_decode_stops_between_chunks_and_removes_the_file(rig):
    job = rig.job("a", target=Target(num_frames=124))
    parts = []

    def cancel(event):
        if event.stage == "decode":
            deadline = time.monotonic() + 10  # the writer's thread makes the file when the first packet comes
            while not (found := list(rig.root.glob(".talkies-*.part"))) and time.monotonic() < deadline:
                time.sleep(0.01)
            parts.append(len(found))
            rig.inbox.put(Cancel("a"))

    (kinds,) = rig.run(job, on_event=cancel)
    assert kinds[-1] == "cancelled"
    assert parts == [1]  # one chunk, and it was being written
    assert list(rig.root.glob("*.mp4")) == []
    assert rig.leftovers() == []


def test_a_bad_job_fails_alone(rig):
    missing = Condition(kind="image", uri=str(rig.root / "nowhere.png"), role="first")
    jobs = [
        rig.job("good"),
        rig.job("missing", conditions=(missing,)),
        rig.job("too-long", target=Target(seconds=99)),
        rig.job("good-too"),
        replace(rig.job("no-folder"), outputs=(rig.root / "nowhere" / "a.mp4",)),
    ]
    ends = [kinds[-1] for kinds in rig.run(*jobs)]
    assert ends == ["finished", "failed", "failed", "finished", "failed"]
    assert rig.kinds("no-folder") == ["failed"]  # before any work
    assert "nowhere" in rig.last("no-folder").error["message"]
    assert rig.last("no-folder").error["code"] == "output_failed"
    assert rig.last("missing").error["code"] == "invalid_media"
    assert rig.last("missing").error["status"] == 400
    assert rig.last("too-long").error["param"] == "seconds"
    assert rig.worker._runs == {}
    assert len(rig.worker._scheduler) == 0


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (MemoryError(), "out_of_memory"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("could not create a primitive"), "out_of_memory"),
        (OSError(12, "Cannot allocate memory"), "out_of_memory"),
        (RuntimeError("could not create a primitive descriptor for a matmul"), "internal_error"),
        (RuntimeError("surprise"), "internal_error"),
    ],
)
def test_whatever_a_forward_raises_is_that_jobs_error(rig, monkeypatch, raised, code):
    real = rig.worker._batcher.step

    def step(states):
        if states[0].request.prompt == "a":
            raise raised
        real(states)

    monkeypatch.setattr(rig.worker._batcher, "step", step)
    kinds, others = rig.run(rig.job("a"), rig.job("b"))
    assert (kinds[-1], others[-1]) == ("failed", "finished")
    assert rig.last("a").error["code"] == code
    assert raised.__traceback__ is None  # it would hold every tensor of the step


@pytest.mark.parametrize("stream", ["audio", "video"])
def test_numbers_that_are_not_finite_fail_by_stage_and_leave_no_file(rig, monkeypatch, stream):
    real = rig.worker._batcher.step

    def step(states):
        real(states)
        if states[0].done:  # an earlier one would be in both streams by now
            with torch.inference_mode():
                getattr(states[0], f"{stream}_rows")[0] = float("nan")

    monkeypatch.setattr(rig.worker._batcher, "step", step)
    job = rig.job("a")
    (kinds,) = rig.run(job)
    assert kinds[-1] == "failed"
    assert rig.last("a").error["code"] == "non_finite"
    assert f"denoise {stream}" in rig.last("a").error["message"]  # where it began, not the decoder that met it
    assert not job.outputs[0].exists()
    assert rig.leftovers() == []


def test_a_run_goes_on_from_its_saved_step_to_the_same_bytes(tiny_folder, tmp_path, plain):
    rig = Rig(tiny_folder, tmp_path, save_every_s=0.0)
    job = rig.job("a", num_sigmas=9, num_outputs=2)

    def stop(event):
        if event.stage == "denoise" and event.fraction > 0.6:  # in the second output
            rig.inbox.put(None)

    rig.run(job, on_event=stop)
    assert rig.kinds("a")[-1] != "finished"
    done_before = rig.forwards("a")
    assert 8 < done_before < 16
    assert ResumeFile(folder=job.resume_dir, request=job.request, model_hash=rig.messages[0].info.model_hash).load()
    orphan = tmp_path / ".talkies-0123456789abcdef.part"
    orphan.write_bytes(b"left by a killed worker")

    after = Rig(tiny_folder, tmp_path)
    after.run(job)
    assert after.kinds("a")[:2] == ["queued", "resumed"]
    assert after.events["a"][1].facts.frames == 22
    assert after.kinds("a")[-1] == "finished"
    assert after.forwards("a") == 16 - done_before
    assert written(job) == rendered(plain, job, tmp_path)
    assert after.leftovers() == []


def test_a_preempted_job_ends_in_the_same_bytes(tiny_folder, tmp_path, plain):
    rig = Rig(tiny_folder, tmp_path, policy="shortest-remaining")
    long = rig.job("long", num_sigmas=12, target=Target(num_frames=39))
    short = rig.job("short", num_sigmas=3)

    def interfere(event):
        if event.job_id == "long" and event.stage == "denoise" and event.step == 3:
            rig.submit(short)

    rig.run(long, on_event=interfere)
    order = [m.job_id for m in rig.messages if isinstance(m, JobEvent) and m.kind == "finished"]
    assert order == ["short", "long"]
    for job in (long, short):
        assert written(job) == rendered(plain, job, tmp_path)


def test_small_jobs_share_forwards(tiny_folder, tmp_path):
    rig = Rig(tiny_folder, tmp_path, max_num_seqs=3, max_step_rows=100_000)
    jobs = [rig.job(name, num_sigmas=6, seed=i) for i, name in enumerate("abc")]
    assert [kinds[-1] for kinds in rig.run(*jobs)] == ["finished"] * 3
    shared = [m.job_ids for m in rig.messages if isinstance(m, At) and len(m.job_ids) == 3]
    assert shared
    stats = [m for m in rig.messages if isinstance(m, Stats)]
    rig.worker._say_stats(now=True)
    totals = rig.messages[-1].values
    assert totals["shared_forwards_total"] >= 4
    assert totals["forwards_total"] < 15  # alone they would be 15
    assert totals["finished_total"] == 3
    assert len(stats) < 50


def test_a_group_that_does_not_fit_runs_one_by_one(tiny_folder, tmp_path, monkeypatch):
    rig = Rig(tiny_folder, tmp_path, max_num_seqs=2, max_step_rows=100_000)
    real = rig.worker._batcher.step

    def step(states):
        if len(states) > 1 or states[0].request.prompt == "bad":
            raise MemoryError
        real(states)

    monkeypatch.setattr(rig.worker._batcher, "step", step)
    ends = [kinds[-1] for kinds in rig.run(rig.job("a"), rig.job("bad"), rig.job("c"))]
    assert ends == ["finished", "failed", "finished"]


def test_previews_are_jpegs_at_their_interval(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("talkies.engine.worker.reporting.PREVIEW_SHARE", math.inf)  # however slow this machine is
    rig = Rig(tiny_folder, tmp_path, preview_every_s=0.0)
    rig.run(rig.job("a", num_sigmas=6))
    previews = [e for e in rig.events["a"] if e.kind == "preview"]
    assert [e.step for e in previews] == [1, 2, 3, 4, 5]
    assert all(e.jpeg[:2] == b"\xff\xd8" for e in previews)


def test_previews_take_a_small_part_of_the_time(tiny_folder, tmp_path, monkeypatch):
    rig = Rig(tiny_folder, tmp_path, preview_every_s=0.0)
    decode = worker.decode_still

    def slowly(video, latent):
        clock.now += 2.0
        return decode(video, latent)

    clock = Clock()
    monkeypatch.setattr("talkies.engine.worker.reporting.time", clock)
    monkeypatch.setattr(worker, "decode_still", slowly)
    rig.run(rig.job("a", num_sigmas=60), on_event=clock.after_a_step)
    previews = [e.step for e in rig.events["a"] if e.kind == "preview"]
    assert previews == [1, 42]  # steps of a second: two seconds of decoding wait for forty


class Clock:
    """Stands for the module ``time``: each step takes a second."""

    now = 0.0

    def monotonic(self):
        return self.now

    def after_a_step(self, event):
        self.now += event.kind == "progress" and event.stage == "denoise"


def test_a_preview_that_fails_does_not_touch_the_clip(tiny_folder, tmp_path, monkeypatch):
    rig = Rig(tiny_folder, tmp_path, preview_every_s=0.0)
    monkeypatch.setattr("talkies.engine.worker.reporting.to_jpeg", None)
    (kinds,) = rig.run(rig.job("a"))
    assert kinds[-1] == "finished"
    assert "preview" not in kinds


def test_files_outside_the_media_folder_are_refused(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "secret.png"
    inside.mkdir()
    outside.write_bytes(b"")
    (inside / "link.png").symlink_to(outside)

    def check(uri):
        request = VideoRequest(prompt="x", conditions=(Condition(kind="image", uri=uri, role="first"),))
        check_media_root(request, inside)

    for uri in (str(outside), f"file://{inside}/../secret.png", str(inside / "link.png")):
        with pytest.raises(MediaError, match="outside"):
            check(uri)
    check(str(inside / "a.png"))
    check("https://example.com/a.png")


def test_the_workers_own_media_folder_holds_for_jobs_without_one(tiny_folder, tmp_path):
    (tmp_path / "media").mkdir()
    rig = Rig(tiny_folder, tmp_path, media_root=tmp_path / "media")
    picture = Condition(kind="image", uri="/etc/hostname", role="first")
    (kinds,) = rig.run(rig.job("a", conditions=(picture,)))
    assert kinds[-1] == "failed"
    assert "outside" in rig.last("a").error["message"]


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nothing-here"):
        Rig(tmp_path / "nothing-here", tmp_path)


@pytest.fixture
def headers_read(monkeypatch):
    """Names of the files whose headers were read to count a request."""
    read = []

    def noted(condition):
        read.append(condition.uri.rpartition("/")[2])
        return header_of(condition)

    monkeypatch.setattr("talkies.capacity.demand.header_of", noted)
    return read


def test_headers_are_read_once_a_request_and_not_once_a_unit(tiny_folder, tmp_path, headers_read):
    for name in ("p.png", "q.png"):
        Image.new("RGB", (64, 64), "red").save(tmp_path / name)
    rig = Rig(tiny_folder, tmp_path)
    conditions = tuple(
        Condition(kind="image", uri=str(tmp_path / name), role=role)
        for name, role in (("p.png", "first"), ("q.png", "last"))
    )
    (kinds,) = rig.run(rig.job("counted", conditions=conditions))
    assert kinds[-1] == "finished"
    assert kinds.count("progress") > 5
    assert headers_read == ["p.png", "q.png"]


def test_a_job_that_was_counted_at_submit_is_not_counted_again(tiny_folder, tmp_path, headers_read, monkeypatch):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "p.png")
    rig = Rig(tiny_folder, tmp_path)
    components = rig.worker._components
    job = rig.job("counted", conditions=(Condition(kind="image", uri=str(tmp_path / "p.png"), role="first"),))
    demand = demand_of(job.request, components.limits, count_tokens=components.text.tokenizer.count)
    admitted = []
    admit = rig.worker._scheduler.admit
    monkeypatch.setattr(rig.worker._scheduler, "admit", lambda name, **of: (admitted.append(of), admit(name, **of)))
    rig.run(replace(job, demand=demand))
    assert headers_read == ["p.png"]
    assert admitted[0]["rows"] == demand.rows == rig.last("counted").facts.rows
    assert admitted[0]["remaining"] == demand.rows * demand.num_forwards
    need = rig.worker._memory.need(demand)
    assert (admitted[0]["held"], admitted[0]["transient"]) == (need.held, need.transient)


def test_a_job_over_the_budget_fails_by_name_and_others_wait_for_memory(tiny_folder, tmp_path):
    rig = Rig(tiny_folder, tmp_path, policy="fair")
    limits = rig.worker._components.limits
    model = rig.worker._memory
    small = rig.job("a").request
    count_tokens = rig.worker._components.text.tokenizer.count
    need = model.need(demand_of(small, limits, count_tokens=count_tokens))
    room = need.peak + 200_000  # the names differ in length
    rig.worker._memory = replace(model, room=room, budget=1 << 30)
    rig.worker._scheduler.room = room
    jobs = [rig.job("a"), rig.job("long", target=Target(num_frames=124)), rig.job("b")]
    assert [kinds[-1] for kinds in rig.run(*jobs)] == ["finished", "failed", "finished"]
    error = rig.last("long").error
    assert (error["code"], error["status"], error["param"]) == ("invalid_request", 400, "num_frames")
    order = [(m.job_id, m.kind) for m in rig.messages if isinstance(m, JobEvent)]
    assert order.index(("a", "finished")) < order.index(("b", "started"))  # fair would have taken turns


def test_signs_of_life_come_from_every_stage(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("talkies.engine.worker.heartbeat.BEAT_EVERY_S", -1.0)
    Image.new("RGB", (64, 64)).save(tmp_path / "p.png")
    rig = Rig(tiny_folder, tmp_path)
    job = rig.job("a", conditions=(Condition(kind="image", uri=str(tmp_path / "p.png"), role="first"),))
    rig.run(job)
    beats = Counter()
    stage = ""
    for message in rig.messages:
        if isinstance(message, JobEvent) and message.stage:
            stage = message.stage
        if isinstance(message, Beat):
            beats[stage] += 1
    assert beats["prepare"] >= 50  # between prepare and encode: every layer of the text encoder, every tile
    assert beats["encode"] >= 2
    assert beats["denoise"] >= 3
    begun = [m.expected_s for m in rig.messages if isinstance(m, Beat) and m.expected_s]
    assert all(0 < expected_s < 60 for expected_s in begun)
    assert len(begun) == 3  # one per forward


def test_an_idle_worker_notices_that_memory_became_free(tiny_folder, tmp_path, monkeypatch):
    """A room that was too small for anything refuses every job, so no job would ever make it look again."""
    monkeypatch.setattr("talkies.engine.worker.memory_model.free_ram_bytes", lambda: 1 << 20)
    rig = Rig(tiny_folder, tmp_path)
    assert rig.messages[-1].memory.room == 0
    monkeypatch.setattr("talkies.engine.worker.memory_model.free_ram_bytes", lambda: 8 << 30)
    monkeypatch.setattr("talkies.engine.worker.memory_model.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("talkies.engine.worker.loop.LOOK_EVERY_S", 0.05)
    thread = threading.Thread(target=rig.worker.run)
    thread.start()
    deadline = time.monotonic() + 10
    while not [m for m in rig.messages if isinstance(m, Room)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rig.inbox.put(None)
    thread.join(10)
    assert next(m for m in rig.messages if isinstance(m, Room)).memory.room > 4 << 30
    assert rig.worker._scheduler.room > 4 << 30


def test_nothing_of_an_ended_job_stays_with_the_worker(tiny_folder, tmp_path, monkeypatch):
    """Not in the group of its last forward either, while nobody else asks for one."""
    rig, kept = Rig(tiny_folder, tmp_path), []
    real = rig.worker._batcher.step

    def step(group):
        kept.extend(weakref.ref(state.layout.positions) for state in group)
        real(group)

    monkeypatch.setattr(rig.worker._batcher, "step", step)
    rig.run(rig.job("a"), rig.job("b"))
    gc.collect()
    assert len(kept) == 6
    assert [ref() for ref in kept] == [None] * 6
