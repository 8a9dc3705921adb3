"""One accepted job inside the worker: a run of its request, with its events, its saved state and its end.

Forwards are done by the worker, since several jobs may share one; all other units are begun here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from talkies.capacity.admission import MemoryModel, Need, check_fits
from talkies.capacity.cost import CostModel, Size, pixels_of, size_of
from talkies.capacity.demand import Demand, demand_of
from talkies.engine.load.build import Components
from talkies.engine.pipeline.condition_media import MediaAccess, check_media_root
from talkies.engine.pipeline.resume import ResumeFile, Saved, sweep_parts
from talkies.engine.pipeline.run import Boundary, RequestRun
from talkies.engine.pipeline.sinks import Mp4Sink
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts
from talkies.engine.port.failure import error_dict
from talkies.engine.port.service import Job
from talkies.engine.worker.batching import batch_key
from talkies.engine.worker.reporting import Emit, JobVoice
from talkies.errors import TalkiesError
from talkies.media.write.destination import check_place

log = logging.getLogger(__name__)


class JobRun:
    """``advance`` does the next unit unless ``wants_forward``; then the worker steps ``state`` and calls ``stepped``.

    Errors leave through ``advance``; whoever catches one calls ``fail``. Exactly one of ``done`` becoming true,
    ``fail`` and ``cancel`` ends a run, and each emits its last event.
    """

    def __init__(
        self,
        components: Components,
        job: Job,
        emit: Emit,
        *,
        save_every_s: float,
        preview_every_s: float,
        media_root: Path | None = None,
    ) -> None:
        self.job = job
        self.done = False
        self.shared = False  # a forward of it was shared, so its times say nothing about its cost
        self.resumed_at: int | None = None
        self.demand: Demand | None = job.demand  # counted once: here by accept, if nobody has
        self._components = components
        self._media_root = job.media_root or media_root
        self._save_every_s = save_every_s
        self._voice = JobVoice(job, emit, preview_every_s=preview_every_s)
        self._last_save_at = time.monotonic()
        self._was_saved = False
        self._resume = self._resume_file()
        self._saved: Saved | None = None  # what it goes on from, until it does
        self._run = RequestRun(components, job.request, self._open, access=MediaAccess(alive=components.alive))

    @property
    def state(self) -> RequestState | None:
        """Of the output in work."""
        return self._run.state

    @property
    def wants_forward(self) -> bool:
        return self._run.wants_forward

    @property
    def batch_key(self) -> Hashable | None:
        return batch_key(self.state) if self.state is not None and self.wants_forward else None

    @property
    def took_s(self) -> float:
        """Time that the worker spent on it."""
        return self._run.took_s

    def accept(self, memory: MemoryModel, *, begun_at: float) -> Need:
        """Before its first unit: judges it, and clears what a worker before ``begun_at`` left. Raises
        ``InvalidRequest``, and ``OutputError`` where no file can be written; reads file headers."""
        check_media_root(self.job.request, self._media_root)  # first: no other file is even looked at
        limits, count_tokens = self._components.limits, self._components.text.tokenizer.count
        if self.demand is None:
            self.demand = demand_of(self.job.request, limits, count_tokens=count_tokens)
        check_fits(memory, self.job.request, self.demand, limits)
        for path in self.job.outputs:
            check_place(path)
        if self.job.resume_dir is not None:
            for folder in {path.parent for path in self.job.outputs}:
                sweep_parts(folder, before_s=begun_at)
        return memory.need(self.demand)

    def size(self) -> Size:
        """As packed once a state exists, as counted before. It has been accepted."""
        assert self.demand is not None
        if self.state is None:
            return size_of(self.demand)
        outputs = self.job.request.num_outputs
        return Size(
            rows=self.state.num_rows,
            num_forwards=(self.state.ran + self.state.forwards_left) * outputs,
            pixels=pixels_of(self.state.geometry) * outputs,
        )

    def forwards_left(self) -> float:
        """Of all outputs, as far as they are expected to be run."""
        return self._run.forwards_left()

    def advance(self) -> None:
        """The next unit that is not a forward. Sets ``done`` after the last one."""
        done = self._run.advance()
        if done is None:
            self._finish()
        else:
            self._passed(done)

    def before_step(self) -> None:
        """Called before the worker steps ``state``."""
        assert self.state is not None
        self._voice.before_step(self.state)

    def stepped(
        self, seconds: float, cost: CostModel, preview: Callable[[Tensor], Tensor], *, sharing: int = 1
    ) -> None:
        """Called after the worker stepped ``state``, in a forward of ``seconds`` for ``sharing`` jobs: progress,
        preview, save."""
        state = self.state
        assert state is not None
        self._run.stepped(seconds / sharing)
        outputs = self.job.request.num_outputs - self._run.output
        self._voice.stepped(state, seconds, cost, forwards_left=self.forwards_left(), outputs=outputs)
        self._voice.preview(state, preview)
        # A run long enough to have been saved once is also worth saving before its decode.
        if time.monotonic() - self._last_save_at >= self._save_every_s or (state.done and self._was_saved):
            self.save()

    def save(self) -> None:
        """Keeps the state on disk. A disk that refuses costs the resume, not the job."""
        if self._resume is None or self.state is None:
            return
        try:
            self._resume.save(self.state, self._run.output)
            self._was_saved = True
        except OSError as error:
            log.warning("job %s: cannot save its state: %s", self.job.id, error)
        self._last_save_at = time.monotonic()

    def waiting(self) -> None:
        """It does not run now."""
        self._voice.emit("queued")

    def cancel(self) -> None:
        self._end()
        self._voice.emit("cancelled")

    def fail(self, error: TalkiesError) -> None:
        self._end()
        self._voice.emit("failed", error=error_dict(error))

    def close(self) -> None:
        """Leaves the job where it is, with its state on disk: somebody will go on."""
        self.save()
        self._run.close()

    def forget(self) -> None:
        """Lets go of the tensors of a job that has ended."""
        self._run.close()

    def _end(self) -> None:
        """Ended early: nothing of it stays, in memory or on disk."""
        self._run.close()  # an open MP4 is abandoned and its partial file removed
        self._voice.forget()
        if self._resume is not None:
            self._resume.drop()
        for path in self.job.outputs:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _passed(self, done: Boundary) -> None:
        """A unit is done that was not the last one."""
        if done.stage == "prepare":
            self._saved = self._load()
            if self._saved is None:
                self._voice.emit("started", stage="prepare", fraction=0.0, facts=self._run.facts)
            else:
                self._run.output = self._saved.output
        if done.stage == "denoise":
            self._begin_output()
        elif done.step and self._saved is None:  # progress never goes back: one that resumes is further than this
            self._voice.stage(done.stage, done.step, done.num_steps)

    def _begin_output(self) -> None:
        self._voice.begin_output(self._run.output)
        saved, self._saved = self._saved, None
        if saved is not None and self.state is not None:
            self._restore(self.state, saved)

    def _finish(self) -> None:
        self.done = True
        if self._resume is not None:
            self._resume.drop()
        self._voice.emit("finished", fraction=1.0, facts=self._run.facts)

    def _open(self, output: int, state: RequestState, facts: Facts) -> Mp4Sink:
        return Mp4Sink.of(self._components, self.job.outputs[output], state, facts)

    def _load(self) -> Saved | None:
        """What to go on from, if it is whole: outputs before the saved one must be there."""
        saved = None if self._resume is None else self._resume.load()
        if saved is None:
            return None
        finished = self.job.outputs[: saved.output]
        if saved.output >= self.job.request.num_outputs or not all(path.is_file() for path in finished):
            log.warning("job %s: its saved state does not fit its files: starting over", self.job.id)
            return None
        return saved

    def _restore(self, state: RequestState, saved: Saved) -> None:
        try:
            state.restore(saved.tensors)
        except (ValueError, KeyError) as error:
            log.warning("job %s: %s: this output starts over", self.job.id, error)
        self.resumed_at = state.step
        done = {"step": state.step, "num_steps": state.num_forwards}
        self._voice.emit("resumed", stage="denoise", facts=self._run.facts, **done)

    def _resume_file(self) -> ResumeFile | None:
        if self.job.resume_dir is None:
            return None
        return ResumeFile(folder=self.job.resume_dir, request=self.job.request, model_hash=self._components.model_hash)
