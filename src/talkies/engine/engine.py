"""The facade: open a checkpoint in this process and make clips, one after another."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import torch

from talkies.engine.asking import one_request, requests_of
from talkies.engine.config import EngineConfig
from talkies.engine.events import OnProgress, Reporter, ShouldStop
from talkies.engine.load import build
from talkies.engine.options import takes_options
from talkies.engine.pipeline.clip import Clip
from talkies.engine.pipeline.preview import Peek
from talkies.engine.pipeline.run import Boundary, RequestRun
from talkies.engine.pipeline.sinks import ClipSink, Mp4Sink, OpenSink
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.tasks import Prepared
from talkies.engine.port.facts import Facts
from talkies.engine.port.failure import as_talkies, out_of_memory
from talkies.engine.steps import FrameSink, Latents, OnStep, Step, Stream, Units, put_latents
from talkies.errors import Cancelled, ConfigError, InvalidRequest
from talkies.h3.geometry import Limits
from talkies.media.write.destination import check_writable
from talkies.request import VideoRequest
from talkies.sampling.noise import Noise


class Engine:
    """``Engine.open().generate(prompt="a red ball bounces")`` gives a :class:`Clip`.

    In process, one request at a time: threads wait for their turn, and a forked process must open its own.
    ``talkies serve`` is what shares a model between clients. ``with Engine.open(...) as engine`` closes it at the end.
    """

    def __init__(self, components: build.Components) -> None:
        self.components = components
        self._lock = threading.RLock()  # streamed and evicted weights belong to the request that called for them
        self._pid = os.getpid()

    @classmethod
    @takes_options
    def open(cls, model: str | Path | None = None, **options: Any) -> Engine:
        """Load a folder or hub id; the embedded checkpoint when ``model`` is None.

        ``options`` are those of ``talkies serve``, by the names of :class:`EngineConfig`: ``offload="layer"``,
        ``vram_budget="12GiB"``; ``None`` is the default.

        Raises ``ConfigError`` and ``CheckpointError``.
        """
        return cls.open_config(EngineConfig.of({"model": model, **options}))

    @classmethod
    def open_config(cls, config: EngineConfig) -> Engine:
        """As :meth:`open`, from options that have been checked."""
        return cls(build.load(config))

    def close(self) -> None:
        """Ends the other processes of an engine that has several; needed only before another one is opened."""
        self.components.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def limits(self) -> Limits:
        return self.components.limits

    def generate(
        self,
        request: VideoRequest | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
        should_stop: ShouldStop | None = None,
        noise: Noise | None = None,
        **words: Any,
    ) -> Clip:
        """One clip in memory, of a request, of words such as ``prompt="a red ball"``, ``seed=7``, ``seconds=2``,
        ``first_frame=picture``, or of both: words replace what they name (:func:`asking.requests_of` lists them).

        ``on_step`` is called after each step with a :class:`Step`: its latents, a preview, a way to cancel. ``noise``
        replaces the seeded draw. Raises ``InvalidRequest`` (before any work), ``Cancelled``, ``NumericsError``,
        ``OutOfMemory``.
        """
        one = one_request(request, words, what="generate() returns", way="generate_all()")
        return self._clips(one, on_progress, on_step, should_stop, noise=noise)[0]

    def generate_all(
        self,
        request: VideoRequest | Sequence[VideoRequest] | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
        should_stop: ShouldStop | None = None,
        noise: Noise | None = None,
        **words: Any,
    ) -> list[Clip]:
        """As :meth:`generate`, for several clips: of a list of requests, of lists of prompts and seeds (every prompt
        with every seed, prompts first), and ``num_outputs`` of each with seeds ``seed, seed + 1, ...``. Text and
        conditions of a request are encoded once."""
        requests = requests_of(request, words)
        if noise is not None and len(requests) > 1:
            raise InvalidRequest("noise is of one request", hint="call generate() for each", param="noise")
        return [clip for one in requests for clip in self._clips(one, on_progress, on_step, should_stop, noise=noise)]

    async def agenerate(
        self, request: VideoRequest | None = None, *, should_stop: ShouldStop | None = None, **rest: Any
    ) -> Clip:
        """:meth:`generate` in a thread, for programs with an event loop; a cancelled task ends the request, too."""
        left = threading.Event()

        def stops() -> bool:
            return left.is_set() or (should_stop is not None and should_stop())

        try:
            return await asyncio.to_thread(self.generate, request, should_stop=stops, **rest)
        except asyncio.CancelledError:
            left.set()
            raise

    def decode(
        self,
        latents: Latents,
        request: VideoRequest | None = None,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        **words: Any,
    ) -> Clip:
        """The clip of ``latents``, as :meth:`Step.latents` of the last step gives them, instead of denoising the
        request that they belong to. Its metadata are those of the request. Raises as :meth:`generate`."""
        one = one_request(request, words, what="latents are of", way="decode() for each")
        return self._clips(one, on_progress, None, should_stop, latents=latents)[0]

    def stream(
        self,
        request: VideoRequest | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
        should_stop: ShouldStop | None = None,
        **words: Any,
    ) -> Stream:
        """The frames of one clip, each when it is decoded: no more than a few are in memory at once. What it raises is
        raised while it is iterated, but for ``InvalidRequest`` about words."""
        one = one_request(request, words, what="a stream is of", way="stream() for each")

        def units(open_state: Callable[[RequestState], FrameSink]) -> Units:
            with self._turn(one):
                return (
                    yield from self._units(
                        one, lambda _, state, __: open_state(state), on_progress, should_stop, on_step=on_step
                    )
                )

        return Stream(units)

    def _clips(
        self,
        request: VideoRequest,
        on_progress: OnProgress | None,
        on_step: OnStep | None,
        should_stop: ShouldStop | None,
        *,
        noise: Noise | None = None,
        latents: Latents | None = None,
    ) -> list[Clip]:
        with self._turn(request):
            sinks: list[ClipSink] = []

            def open_sink(output: int, state: RequestState, facts: Facts) -> ClipSink:
                sinks.append(ClipSink(self.components, state, facts))
                return sinks[-1]

            results = self._drive(
                request, open_sink, on_progress, should_stop, noise=noise, on_step=on_step, latents=latents
            )
            return [sink.clip(facts) for sink, facts in zip(sinks, results, strict=True)]

    def render(
        self,
        request: VideoRequest,
        paths: Sequence[Path],
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        prepared: Prepared | None = None,
    ) -> list[Facts]:
        """One MP4 per output, written while the next frames decode. Returns what is known of each.

        ``prepared`` is what :func:`path.prepare_ahead` made of the request.
        Raises as :meth:`generate`, also for a place that cannot be written (before any work), and ``OutputError`` where
        writing fails later; a file is whole or absent.
        """
        with self._turn(request):
            if len(paths) != request.num_outputs:
                raise InvalidRequest(
                    f"num_outputs={request.num_outputs}, but {len(paths)} paths are given",
                    hint="give one path per output",
                    param="num_outputs",
                )
            for path in paths:
                check_writable(Path(path))

            def open_sink(output: int, state: RequestState, facts: Facts) -> Mp4Sink:
                return Mp4Sink.of(self.components, Path(paths[output]), state, facts)

            results = self._drive(request, open_sink, on_progress, should_stop, prepared=prepared)
            return [replace(facts, path=str(path)) for facts, path in zip(results, paths, strict=True)]

    @contextmanager
    def _turn(self, request: VideoRequest) -> Iterator[None]:
        """Raises ``InvalidRequest`` for what is no request, ``ConfigError`` in a forked process."""
        if not isinstance(request, VideoRequest):
            raise InvalidRequest(
                f"a request must be a VideoRequest, got {type(request).__name__}",
                hint='for example VideoRequest(prompt="a red ball bounces")',
                param="request",
            )
        if os.getpid() != self._pid:  # torch's threads did not come along: the first product would wait for ever
            raise ConfigError(
                f"this engine was opened by process {self._pid}, and process {os.getpid()} was forked from it",
                hint="open an engine in the process that uses it, or start processes with the method 'spawn'",
                param="engine",
            )
        with self._lock, self._out_of_memory():
            yield

    @contextmanager
    def _out_of_memory(self) -> Iterator[None]:
        """A device or host that is full fails the request, by name, and what it held is free for the next one."""
        try:
            yield
        except Exception as error:
            known = as_talkies(error) if out_of_memory(error) else None
            if known is None:
                raise
            error.__traceback__ = None  # its frames hold the tensors of the request
        else:
            return
        self.components.release()
        self.components.give_back()
        raise known

    def _drive(self, *args: Any, **rest: Any) -> list[Facts]:
        """The whole path, one unit after another: what is known of each output."""
        units = self._units(*args, **rest)
        while True:
            try:
                next(units)
            except StopIteration as end:
                return end.value

    def _units(
        self,
        request: VideoRequest,
        open_sink: OpenSink,
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        *,
        noise: Noise | None = None,
        prepared: Prepared | None = None,
        on_step: OnStep | None = None,
        latents: Latents | None = None,
    ) -> Units:
        """The path with a pause after each unit."""
        # The process has one count for all its engines; the last bits of this one's clips are its own's.
        torch.set_num_threads(self.components.config.threads)
        report = Reporter(on_progress, num_outputs=request.num_outputs)
        forward_s: list[float] = []
        with closing(RequestRun(self.components, request, open_sink, prepared=prepared, noise=noise)) as run:
            while True:
                done: Boundary | None
                eta_s = None
                is_over = False
                if run.wants_forward:
                    assert run.state is not None
                    peek = None if on_step is None else Peek(run.state)
                    seconds = run.forward()
                    if run.state.last_ran:
                        forward_s.append(seconds / run.state.last_ran)
                    done = Boundary("denoise", run.state.step, run.state.num_forwards)
                    if left := run.forwards_left():
                        eta_s = median(forward_s) * left  # the first one may compile, and says little about others
                    if on_step is not None and peek is not None:
                        step = Step(self.components, run.state, run.output, peek)
                        on_step(step)
                        is_over = step.cancelled
                else:
                    done = run.advance()
                    if latents is not None and run.state is not None and run.wants_forward:
                        put_latents(run.state, latents)
                if done is None:
                    return run.results
                if done.step:
                    report(done.stage, done.step, done.num_steps, output=run.output, eta_s=eta_s)
                if is_over or (should_stop is not None and should_stop()):
                    raise Cancelled("the request was cancelled")
                yield
