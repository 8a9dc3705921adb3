"""One accepted job inside the worker: a row of units with a boundary after each, where it can be left or ended.

    prepare | encode | for each output: pack | forward ... forward | sound | frames ... frames | file

Forwards are done by the worker, since several jobs may share one; all other units are this file's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

from talkies.capacity.admission import MemoryModel, Need, check_fits
from talkies.capacity.cost import CostModel, Size, pixels_of, size_of
from talkies.capacity.demand import Demand, demand_of
from talkies.engine.load.build import Components
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.condition_media import MediaAccess, check_media_root
from talkies.engine.pipeline.metadata import clip_metadata
from talkies.engine.pipeline.preview import LatentToRGB
from talkies.engine.pipeline.resume import ResumeFile, Saved, sweep_parts
from talkies.engine.pipeline.stage_seconds import timed
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.tasks import Prepared
from talkies.engine.port.failure import error_dict
from talkies.engine.port.service import Job
from talkies.engine.worker.batching import batch_key
from talkies.engine.worker.reporting import Emit, JobVoice
from talkies.errors import TalkiesError
from talkies.h3.geometry import Geometry
from talkies.media.write.destination import check_place
from talkies.media.write.mp4 import Mp4Writer

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
        self.state: RequestState | None = None
        self.done = False
        self.shared = False  # a forward of it was shared, so its times say nothing about its cost
        self.resumed_at: int | None = None
        self.demand: Demand | None = job.demand  # counted once: here by accept, if nobody has
        self._components = components
        self._media_root = job.media_root or media_root
        self._save_every_s = save_every_s
        self._stages: dict[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._output = 0
        self._voice = JobVoice(job, emit, preview_every_s=preview_every_s)
        self._last_save_at = time.monotonic()
        self._was_saved = False
        self._resume = self._resume_file()
        self._units = self._run()

    @property
    def wants_forward(self) -> bool:
        return self.state is not None and not self.state.done

    @property
    def batch_key(self) -> Hashable | None:
        return batch_key(self.state) if self.state is not None and self.wants_forward else None

    @property
    def took_s(self) -> float:
        """Time that the worker spent on it."""
        return sum(self._stages.values())

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
            num_forwards=self.state.num_forwards * outputs,
            pixels=pixels_of(self.state.geometry) * outputs,
        )

    def forwards_left(self) -> int:
        """Of all outputs."""
        assert self.state is not None
        later = self.job.request.num_outputs - self._output - 1
        return self.state.num_forwards * (later + 1) - self.state.step

    def advance(self) -> None:
        """The next unit that is not a forward. Sets ``done`` after the last one."""
        assert not self.wants_forward
        if next(self._units, "end") == "end":
            self.done = True

    def before_step(self) -> None:
        """Called before the worker steps ``state``."""
        assert self.state is not None
        self._voice.before_step(self.state)

    def stepped(self, seconds: float, cost: CostModel, preview: Callable[[], LatentToRGB]) -> None:
        """Called after the worker stepped ``state``, which took ``seconds``: progress, preview, save."""
        state = self.state
        assert state is not None
        self._stages["denoise"] = self._stages.get("denoise", 0.0) + seconds
        outputs = self.job.request.num_outputs - self._output
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
            self._resume.save(self.state, self._output)
            self._was_saved = True
        except OSError as error:
            log.warning("job %s: cannot save its state: %s", self.job.id, error)
        self._last_save_at = time.monotonic()

    def waiting(self, place: int | None) -> None:
        """It does not run now."""
        self._voice.emit("queued", queue_position=place)

    def cancel(self) -> None:
        self._end()
        self._voice.emit("cancelled")

    def fail(self, error: TalkiesError) -> None:
        self._end()
        self._voice.emit("failed", error=error_dict(error))

    def close(self) -> None:
        """Leaves the job where it is, with its state on disk: somebody will go on."""
        self.save()
        self._units.close()

    def _end(self) -> None:
        """Ended early: nothing of it stays, in memory or on disk."""
        self._units.close()  # an open MP4 is abandoned and its partial file removed
        self.state = None
        self._voice.forget()
        if self._resume is not None:
            self._resume.drop()
        for path in self.job.outputs:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _run(self) -> Generator[None, None, None]:
        components, request = self._components, self.job.request
        with timed(self._stages, "prepare"):
            prepared = pipeline.prepare(components, request, MediaAccess(alive=components.alive))
        self._facts |= self._known(prepared)
        saved = self._saved()
        if saved is None:
            self._voice.emit("started", stage="prepare", fraction=0.0, facts=dict(self._facts))
            self._voice.stage("prepare")
        yield
        encoded = yield from self._encode(prepared)
        if saved is None:  # progress never goes back: one that resumes is further than this
            self._voice.stage("encode")
        yield
        first = 0 if saved is None else saved.output
        for output in range(first, request.num_outputs):
            self._output = output
            with timed(self._stages, "denoise"):
                state = pipeline.pack(components, encoded, output=output)
            if saved is not None and saved.output == output:
                self._restore(state, saved)
            self._voice.begin_output(output)
            self.state = state
            self._facts["rows"] = state.num_rows
            while not state.done:
                yield  # the worker steps
            yield from self._decode(state, self.job.outputs[output])
        self._finish()

    def _encode(self, prepared: Prepared) -> Generator[None, None, pipeline.Encoded]:
        parts = pipeline.encode_by_parts(self._components, prepared)
        while True:
            with timed(self._stages, "encode"):
                try:
                    next(parts)
                except StopIteration as end:
                    return end.value
            yield

    def _decode(self, state: RequestState, path: Path) -> Generator[None, None, None]:
        components, geometry = self._components, state.geometry
        sound = self.job.request.audio
        with Mp4Writer(
            path,
            width=geometry.width,
            height=geometry.height,
            fps=geometry.fps,
            sample_rate_hz=geometry.sample_rate_hz if sound else None,
            metadata=clip_metadata(components, state),
        ) as writer:
            with timed(self._stages, "decode"):
                # Decoded even when it is not written: a request must fail the same way with and without sound.
                wave = pipeline.decode_audio(components, state)
                if sound:
                    writer.write_wave(wave)
            yield
            chunks = pipeline.decode_video(components, state)
            num_frames = 0
            while True:
                with timed(self._stages, "decode"):
                    frames = next(chunks, None)
                    if frames is None:
                        break
                    writer.write_frames(frames)
                num_frames += frames.shape[0]
                self._voice.stage("decode", num_frames, geometry.num_frames)
                yield
            closing = time.perf_counter()
        self._stages["mux"] = self._stages.get("mux", 0.0) + time.perf_counter() - closing

    def _finish(self) -> None:
        if self._resume is not None:
            self._resume.drop()
        stages = {name: round(seconds, 4) for name, seconds in self._stages.items()}
        self._facts["peak_memory_mb"] = round(self._components.peak_memory_bytes() / 2**20)
        self._voice.emit("finished", fraction=1.0, facts=self._facts | {"stages_s": stages})

    def _known(self, prepared: Prepared) -> dict[str, Any]:
        g: Geometry = prepared.geometry
        schedule = pipeline.schedule_of(self._components, self.job.request)
        return {
            "task": str(prepared.task),
            "size": g.size,
            "frames": g.num_frames,
            "seconds": g.duration_s,
            "fps": g.fps,
            "seed": self.job.request.seed,
            "num_forwards": schedule.num_forwards,
            "skipped_fraction": 0.0,
            "warnings": list(prepared.warnings),
            "conditions_used": prepared.conditions_used,
        }

    def _saved(self) -> Saved | None:
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
        self._voice.emit("resumed", stage="denoise", facts=dict(self._facts), **done)

    def _resume_file(self) -> ResumeFile | None:
        if self.job.resume_dir is None:
            return None
        return ResumeFile(folder=self.job.resume_dir, request=self.job.request, model_hash=self._components.model_hash)
