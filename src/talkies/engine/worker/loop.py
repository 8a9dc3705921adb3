"""The loop of one worker process: take orders, do one unit, look again.

Nothing a job does ends the loop: its failure is its own event, and what it held is given back. What can still end
the process (a kill, a crash in native code) is the executor's affair, which is told before each unit whose it is.
"""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from talkies.capacity.admission import MemoryModel
from talkies.capacity.cost import CostModel
from talkies.engine.load import build
from talkies.engine.pipeline.orders import drop_ended
from talkies.engine.pipeline.preview import decode_still
from talkies.engine.port.failure import as_talkies
from talkies.engine.port.messages import (
    At,
    Cancel,
    Command,
    Hello,
    Learned,
    Line,
    Loading,
    Message,
    Ready,
    Room,
    Submit,
    WorkerOptions,
)
from talkies.engine.port.service import JobEvent
from talkies.engine.worker.abilities import describe_service
from talkies.engine.worker.batching import Batcher
from talkies.engine.worker.counters import Counts
from talkies.engine.worker.forwards import forward
from talkies.engine.worker.heartbeat import Pulse
from talkies.engine.worker.job_run import JobRun
from talkies.engine.worker.memory_model import LOOK_EVERY_S, RoomKeeper
from talkies.engine.worker.passed_over import Turns
from talkies.engine.worker.scheduler import StepScheduler
from talkies.engine.worker.warmup import warm_up
from talkies.errors import WorkerDied

BOOKS_EVERY_S = 1.0  # while the order stays as it is


class Worker:
    """``inbox`` is filled by another thread with commands; None in it means stop."""

    def __init__(
        self, options: WorkerOptions, inbox: queue.SimpleQueue[Command | None], send: Callable[[Message], None]
    ) -> None:
        self._options, self._inbox, self._send = options, inbox, send
        self._scheduler = StepScheduler(options.policy, max_num_seqs=options.max_num_seqs)
        self._runs: dict[str, JobRun] = {}
        self._turns = Turns()
        self._counts, self._pulse = Counts(send), Pulse(send)
        self._last_at: tuple[str, ...] = ()
        self._last_line: tuple[str, ...] = ()
        self._books_at = 0.0
        self._started_at = time.time()
        self._components: build.Components
        self._batcher: Batcher
        self._cost: CostModel
        self._memory: MemoryModel
        self._room: RoomKeeper

    def load(self) -> None:
        """Says what it is, loads, warms up, says that it is ready. Raises ``TalkiesError``."""
        self._send(Hello(describe_service(self._options)))
        self._components = build.load(
            self._options.config,
            on_stage=lambda stage: self._send(Loading(stage)),
            on_line=lambda text: self._send(Line(text)),
        )
        self._send(Loading("warm-up"))
        self._batcher = Batcher(self._components)
        self._cost = warm_up(self._components, max_num_seqs=self._options.max_num_seqs)
        self._components.alive = self._pulse
        for model in (self._components.text.encoder.model, self._components.audio.model):
            self._pulse.listen_to(model)  # the video VAE calls for each tile, and forwards are short units
        self._scheduler.max_step_rows = self._options.max_step_rows or self._cost.max_step_rows
        gc.collect()
        gc.freeze()  # what is here now stays: a collection after a job need not look at it
        self._room = RoomKeeper(self._components, self._options)
        self._memory = self._room.measure()
        self._scheduler.room = self._memory.room_or_inf
        self._send(Ready(self._cost, self._memory))

    def run(self) -> None:
        """Until told to stop; what runs then is saved."""
        while self._drain(block=not self._scheduler.next()):
            self._say_books()
            ids = self._scheduler.next()
            if ids:
                self._unit(ids)
            self._say_who_waits(ids)
            self._say_stats()
        for run in self._runs.values():
            run.close()
        self._pulse.close()

    def _drain(self, *, block: bool) -> bool:
        """Obeys all waiting commands; False means stop."""
        if block:
            self._announce(())
            self._say_stats(now=True)
            self._look_at_room()
        while True:
            try:
                # While idle it looks around now and then: a room that was once too small must not stay so.
                command = self._inbox.get(block=block, timeout=LOOK_EVERY_S)
            except queue.Empty:
                return True
            block = False
            if command is None:
                return False
            if isinstance(command, Submit):
                self._admit(command)
            elif isinstance(command, Cancel):
                self._cancel(command.job_id)

    def _admit(self, command: Submit) -> None:
        job = command.job
        self._announce((job.id,))  # headers of its files are read: whoever hangs over them should be known
        run = JobRun(
            self._components,
            job,
            self._send_event,
            save_every_s=self._options.save_every_s,
            preview_every_s=self._options.preview_every_s,
            media_root=self._options.media_root,
        )
        try:
            need, size = run.accept(self._memory, begun_at=self._started_at), run.size()
        except Exception as error:
            self._counts.add("failed")
            run.fail(as_talkies(error))
            return
        self._runs[job.id] = run
        self._scheduler.admit(
            job.id,
            rows=size.rows,
            remaining=size.row_forwards,
            priority=job.priority,
            held=need.held,
            transient=need.transient,
        )
        run.waiting()

    def _cancel(self, job_id: str) -> None:
        run = self._runs.get(job_id)
        if run is not None:
            self._counts.add("cancelled")
            run.cancel()
            self._forget(run)

    def _unit(self, ids: tuple[str, ...]) -> None:
        self._announce(ids)
        runs = [self._runs[job_id] for job_id in ids]
        self._turns.served(ids)
        if all(run.wants_forward for run in runs):
            rows = sum(run.state.num_rows for run in runs if run.state is not None)
            self._pulse.begin(self._cost.ratio * self._cost.forward_s(rows))
            self._forward(runs)
        else:
            assert len(runs) == 1, ids
            self._pulse.begin(0.0)
            self._advance(runs[0])

    def _advance(self, run: JobRun) -> None:
        resumed_before = run.resumed_at
        try:
            run.advance()
        except Exception as error:
            self._failed(run, error)
            return
        if run.resumed_at is not None and resumed_before is None:
            self._counts.add("resumed")
        if run.done:
            self._counts.add("finished")
            if not run.shared and run.resumed_at is None:
                self._cost = self._cost.learned(run.size(), run.took_s)
                self._send(Learned(self._cost))
            self._forget(run)
        else:
            self._report(run, work=0.0)

    def _forward(self, runs: list[JobRun]) -> None:
        for outcome in forward(self._components, self._batcher, runs):
            if outcome.failure is not None:
                self._failed(outcome.runs[0], outcome.failure)
                continue
            shared = len(outcome.runs) > 1
            ran = [0.0 if run.state is None else run.state.last_ran for run in outcome.runs]
            self._counts.add("forwards", outcome.counted and any(ran))
            self._counts.add("shared_forwards", shared and sum(share > 0 for share in ran) > 1)
            for run, share in zip(outcome.runs, ran, strict=True):
                rows = 0 if run.state is None else run.state.num_rows
                self._counts.add("rows", outcome.counted * rows * share)
                self._counts.add("skipped_forwards", outcome.counted * (1 - share))
                run.shared = run.shared or shared
                self._stepped(run, outcome.seconds, sharing=len(outcome.runs))

    def _stepped(self, run: JobRun, seconds: float, *, sharing: int) -> None:
        assert run.state is not None
        try:
            run.stepped(seconds, self._cost, self._decode_preview, sharing=sharing)
        except Exception as error:
            self._failed(run, error)
            return
        self._report(run, work=run.state.num_rows * run.state.last_ran)

    def _report(self, run: JobRun, *, work: float) -> None:
        """Keeps the scheduler's books. Units other than forwards count as nothing: they are short and come once."""
        if run.state is None:
            self._scheduler.report(run.job.id, work=work, remaining=run.size().row_forwards, packed=False)
            return
        rows = run.state.num_rows
        remaining = float(rows * run.forwards_left())
        self._scheduler.report(run.job.id, work=work, remaining=remaining, rows=rows, batch_key=run.batch_key)

    def _failed(self, run: JobRun, error: Exception) -> None:
        if self._components.broken is not None:
            raise error  # nothing can be denoised any more: the next worker has ranks of its own
        self._counts.add("failed")
        known = as_talkies(error)
        # The traceback holds every frame, and each frame its tensors.
        error.__traceback__ = None
        error.__context__ = error.__cause__ = None
        run.fail(known)
        self._components.release()  # others fetch again what they need, into whole memory
        self._forget(run)

    def _forget(self, run: JobRun) -> None:
        """Everything of an ended job is given back, to the system as far as it takes it."""
        self._scheduler.remove(run.job.id)
        self._runs.pop(run.job.id, None)
        self._turns.forget(run.job.id)
        self._batcher.forget()
        run.forget()
        if self._components.leader is not None:
            with suppress(WorkerDied):  # which the next job hears of
                drop_ended(self._components.leader)
        self._components.give_back()

    def _decode_preview(self, latent_Chw: Tensor) -> Tensor:
        self._components.residency.enter("video")  # the next step fetches again what it needs
        return decode_still(self._components.video, latent_Chw)

    def _announce(self, ids: tuple[str, ...]) -> None:
        if ids != self._last_at:
            self._last_at = ids
            self._send(At(ids))

    def _send_event(self, event: JobEvent) -> None:
        self._counts.add("previews", event.kind == "preview")
        self._send(event)

    def _look_at_room(self) -> None:
        """Without a budget the room is what others leave; it is only seen while no job holds a part of it."""
        memory = None if self._runs else self._room.look()
        if memory is not None:
            self._memory, self._scheduler.room = memory, memory.room_or_inf
            self._send(Room(memory))

    def _say_who_waits(self, ids: tuple[str, ...]) -> None:
        if self._options.policy != "fair":  # there everybody waits for the others all the time
            for job_id in self._turns.passed_over(ids):
                self._runs[job_id].waiting()

    def _say_books(self) -> None:
        """When the order has changed, and now and then: a newcomer is compared with what is left of the others."""
        line, now = self._scheduler.line(), time.monotonic()
        if line != self._last_line or (line and now - self._books_at > BOOKS_EVERY_S):
            self._last_line, self._books_at = line, now
            self._send(self._scheduler.books())

    def _say_stats(self, *, now: bool = False) -> None:
        active, rows = float(self._scheduler.num_active), float(self._scheduler.max_step_rows)
        self._counts.say(now=now, active=active, max_step_rows=rows)
