"""One request on its way through the path, a unit of work at a time. No other file knows the order of the units:

    prepare | encode ... encode | for each output: pack | forward ... forward | sound | frames ... frames | file

Between two units is a boundary, where a request can be ended, left, or passed over for another one. What happens there
is the owner's affair: ``Engine`` looks whether to stop and tells how far it is, a worker lets other jobs have a turn.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

from talkies.engine.load.build import Components
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.condition_media import MediaAccess
from talkies.engine.pipeline.forward.skip_facts import never_hit, with_skips_of
from talkies.engine.pipeline.sinks import OpenSink
from talkies.engine.pipeline.stage_seconds import sum_of, timed
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.pipeline.tasks import Prepared
from talkies.engine.port.facts import Facts
from talkies.few_steps import in_use
from talkies.h3.clip_plan import cache_of
from talkies.request import VideoRequest
from talkies.sampling.noise import Noise


@dataclass(frozen=True, slots=True)
class Boundary:
    """What the unit before it has done: ``step`` of ``num_steps`` in ``stage``; a ``step`` of 0 is not worth telling.

    ``("denoise", 0)`` says that an output is packed.
    """

    stage: str
    step: int = 0
    num_steps: int = 1


class RequestRun:
    """``advance`` does the next unit. While ``wants_forward``, that is a forward, and the owner's affair: it calls
    ``forward``, or steps ``state`` together with those of others and calls ``stepped``.

    Errors leave through both; ``close`` ends a run early, and then nothing of an unfinished output stays. ``facts`` are
    the job's, from the end of ``prepare`` on; ``results`` are those of the outputs that are finished.
    """

    def __init__(
        self,
        components: Components,
        request: VideoRequest,
        open_sink: OpenSink,
        *,
        access: MediaAccess | None = None,
        prepared: Prepared | None = None,
        noise: Noise | None = None,
    ) -> None:
        """``prepared``: by somebody else. ``noise``: instead of the seeded draw."""
        self.request = request
        self.state: RequestState | None = None  # of the output in work
        self.output = 0  # the one in work; who resumes a later one sets it before the first is packed
        self.facts: Facts | None = None
        self.results: list[Facts] = []
        self._components, self._open_sink = components, open_sink
        self._access, self._prepared, self._noise = access, prepared, noise
        self._spent: dict[str, float] = {}  # seconds of each stage since the last output was finished
        self._forward_s = self._forwards = 0.0  # seconds of all steps, and whole forwards that were run in them
        self._units = self._path()

    @property
    def wants_forward(self) -> bool:
        return self.state is not None and not self.state.done

    @property
    def took_s(self) -> float:
        """Seconds that were spent on it."""
        return sum(self._spent.values()) + sum(sum(facts.stages_s.values()) for facts in self.results)

    def forwards_left(self) -> float:
        """Of all outputs, once a state exists; what a step cache is expected to leave out does not count."""
        state = self.state
        assert state is not None
        later = self.request.num_outputs - self.output - 1
        return state.forwards_left + later * state.num_forwards * (1 - state.cache.skipped)

    def advance(self) -> Boundary | None:
        """The next unit that is no forward; None: it was the last one."""
        assert not self.wants_forward
        return next(self._units, None)

    def forward(self) -> float:
        """One forward of this request alone, to its end on the device. Returns its seconds."""
        assert self.state is not None
        began = time.perf_counter()
        denoise_step(self._components, self.state)
        self._components.synchronize()
        seconds = time.perf_counter() - began
        self.stepped(seconds)
        return seconds

    def stepped(self, seconds: float) -> None:
        """``state`` is a step further, which took ``seconds``."""
        self._spent["denoise"] = self._spent.get("denoise", 0.0) + seconds
        if self.state is not None:
            self._forward_s, self._forwards = self._forward_s + seconds, self._forwards + self.state.last_ran

    def close(self) -> None:
        """Ends it where it is; an open file is abandoned and its part removed. Idempotent."""
        self._units.close()
        self.state = None

    def _path(self) -> Generator[Boundary, None, None]:
        components, request = self._components, self.request
        with timed(self._spent, "prepare"):
            prepared = self._prepared or pipeline.prepare(components, request, self._access)
        facts = self._known(prepared)
        self.facts = facts
        yield Boundary("prepare", 1)
        encoded = yield from self._encode(prepared)
        yield Boundary("encode", 1)
        while self.output < request.num_outputs:
            with timed(self._spent, "denoise"):
                state = pipeline.pack(components, encoded, output=self.output, noise=self._noise)
            self.state = state
            self.facts = facts = replace(facts, rows=state.num_rows)
            yield Boundary("denoise")
            assert state.done, state.step  # the owner has stepped it
            yield from self._decode(state, self._after_denoising(replace(facts, seed=state.seed), state))
            self.output += 1
        total = sum_of([result.stages_s for result in self.results])
        whole = with_skips_of(facts, self.results)
        self.facts = replace(whole, stages_s=total, peak_memory_mb=self._peak_memory_mb())

    def _known(self, prepared: Prepared) -> Facts:
        schedule = pipeline.schedule_of(self._components, self.request)
        adapters = in_use(self.request, self._components.limits.adapters)
        return replace(
            Facts.of(self.request, prepared.geometry, num_forwards=schedule.num_forwards, adapters=adapters),
            step_cache=cache_of(self.request, self._components.limits).facts(),
            warnings=(*prepared.warnings, *self._cache_notes()),
            conditions_used=tuple(prepared.conditions_used),
        )

    def _cache_notes(self) -> tuple[str, ...]:
        config, quality = self._components.config, self.request.quality
        if quality == "lossless" or config.quantize.method == "none":
            return ()
        return (f"quality={quality} was calibrated without {config.quantize.method}: together they were not measured",)

    def _after_denoising(self, facts: Facts, state: RequestState) -> Facts:
        """What its step cache did. The seconds that it saved are those of the forwards that were run."""
        facts = replace(facts, skipped_fraction=round(state.skipped_fraction, 6))
        if facts.step_cache is None:
            return facts
        saved = (state.num_forwards - state.ran) * self._forward_s / self._forwards if self._forwards else 0.0
        done = {**facts.step_cache, "hits": state.hits, "saved_s": round(saved, 4)}
        notes = () if state.hits else (never_hit(state),)
        return replace(facts, step_cache=done, warnings=(*facts.warnings, *notes))

    def _encode(self, prepared: Prepared) -> Generator[Boundary, None, pipeline.Encoded]:
        parts = pipeline.encode_by_parts(self._components, prepared)
        while True:
            with timed(self._spent, "encode"):
                try:
                    next(parts)
                except StopIteration as end:
                    return end.value
            yield Boundary("encode")

    def _decode(self, state: RequestState, facts: Facts) -> Generator[Boundary, None, None]:
        components, num_frames = self._components, 0
        with self._open_sink(self.output, state, facts) as sink:
            with timed(self._spent, "decode"):
                sink.write_wave(pipeline.decode_audio(components, state))
            yield Boundary("decode")
            chunks = pipeline.decode_video(components, state)
            while True:
                with timed(self._spent, "decode"):
                    frames = next(chunks, None)
                    if frames is None:
                        break
                    sink.write_frames(frames)
                num_frames += frames.shape[0]
                yield Boundary("decode", num_frames, state.geometry.num_frames)
            closing = time.perf_counter()
        self._spent["mux"] = time.perf_counter() - closing
        spent, self._spent = self._spent, {}
        self.results.append(replace(facts, stages_s=spent, peak_memory_mb=self._peak_memory_mb()))

    def _peak_memory_mb(self) -> int:
        return round(self._components.peak_memory_bytes() / 2**20)
