"""The facade: open a checkpoint in this process and make clips, one after another."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from talkies.engine.config import EMBEDDED, EngineConfig
from talkies.engine.events import OnProgress, Reporter, ShouldStop
from talkies.engine.load import build
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.clip import Clip
from talkies.engine.pipeline.metadata import clip_metadata
from talkies.engine.pipeline.stage_seconds import timed
from talkies.engine.pipeline.state import RequestState
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.pipeline.tasks import Prepared
from talkies.engine.port.failure import as_talkies, out_of_memory
from talkies.errors import Cancelled, ConfigError, InvalidRequest
from talkies.h3.geometry import Limits
from talkies.media.write.destination import check_writable
from talkies.media.write.mp4 import Mp4Writer
from talkies.request import VideoRequest
from talkies.sampling.noise import Noise


class Engine:
    """``Engine.open().generate(VideoRequest(prompt="a red ball bounces"))`` gives a :class:`Clip`.

    In process, one request at a time: threads wait for their turn, and a forked process must open its own.
    ``talkies serve`` is what shares a model between clients.
    """

    def __init__(self, components: build.Components) -> None:
        self.components = components
        self._lock = threading.RLock()  # streamed and evicted weights belong to the request that called for them
        self._pid = os.getpid()

    @classmethod
    def open(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        attention: str = "auto",
        kernels: str = "auto",
        quantization: str = "none",
        text_attention: str = "sdpa",
        text_quantization: str = "none",
        cuda_graphs: str = "auto",
        tensor_parallel: int = 1,
        threads: int | None = None,
    ) -> Engine:
        """Load a folder or hub id; the embedded checkpoint when ``model`` is None.

        Raises ``ConfigError`` and ``CheckpointError``.
        """
        return cls.open_config(
            EngineConfig(
                model=EMBEDDED if model is None else str(model),
                device=device,
                dtype=dtype,  # type: ignore[arg-type]
                attention=attention,
                kernels=kernels,
                quantization=quantization,  # type: ignore[arg-type]
                text_attention=text_attention,
                text_quantization=text_quantization,  # type: ignore[arg-type]
                cuda_graphs=cuda_graphs,  # type: ignore[arg-type]
                tensor_parallel=tensor_parallel,
                threads="auto" if threads is None else threads,
            )
        )

    @classmethod
    def open_config(cls, config: EngineConfig) -> Engine:
        return cls(build.load(config))

    def close(self) -> None:
        """Ends the other processes of an engine that has several; needed only before another one is opened."""
        self.components.close()

    @property
    def limits(self) -> Limits:
        return self.components.limits

    def generate(
        self,
        request: VideoRequest,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        noise: Noise | None = None,
    ) -> Clip:
        """One clip in memory. ``noise`` replaces the seeded draw.

        Raises ``InvalidRequest`` (before any work), ``Cancelled``, ``NumericsError``, ``OutOfMemory``.
        """
        if isinstance(request, VideoRequest) and request.num_outputs != 1:
            raise InvalidRequest(
                f"num_outputs_per_prompt={request.num_outputs}, but generate() returns one clip",
                hint="use generate_all()",
                param="num_outputs_per_prompt",
            )
        return self.generate_all(request, on_progress=on_progress, should_stop=should_stop, noise=noise)[0]

    def generate_all(
        self,
        request: VideoRequest,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        noise: Noise | None = None,
    ) -> list[Clip]:
        """``num_outputs`` clips with seeds ``seed, seed + 1, ...``; text and conditions are encoded once."""
        with self._turn(request):
            return self._clips(request, on_progress, should_stop, noise)

    def _clips(
        self,
        request: VideoRequest,
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        noise: Noise | None,
    ) -> list[Clip]:
        clips = []
        for state, stages, report in self._run(request, on_progress, should_stop, noise):
            with timed(stages, "decode"):
                wave = pipeline.decode_audio(self.components, state)
                frames = np.concatenate(list(self._frames(state, report, should_stop)))
            clips.append(
                Clip(
                    frames=frames,
                    audio=wave,
                    fps=state.geometry.fps,
                    sample_rate_hz=state.geometry.sample_rate_hz,
                    request=request,
                    metadata=clip_metadata(self.components, state, keep_paths=True),
                    stages_s=stages,
                )
            )
        return clips

    def render(
        self,
        request: VideoRequest,
        paths: Sequence[Path],
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        prepared: Prepared | None = None,
    ) -> list[dict[str, Any]]:
        """One MP4 per output, written while the next frames decode. Returns the facts that ``--json`` prints.

        ``prepared`` is what :func:`pipeline.prepare_ahead` made of the request.
        Raises as :meth:`generate`, also for a place that cannot be written (before any work), and ``OutputError`` where
        writing fails later; a file is whole or absent.
        """
        with self._turn(request):
            if len(paths) != request.num_outputs:
                raise InvalidRequest(
                    f"num_outputs_per_prompt={request.num_outputs}, but {len(paths)} paths are given",
                    hint="give one path per output",
                    param="num_outputs_per_prompt",
                )
            for path in paths:
                check_writable(Path(path))
            return self._render(request, paths, on_progress, should_stop, prepared)

    def _render(
        self,
        request: VideoRequest,
        paths: Sequence[Path],
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        prepared: Prepared | None,
    ) -> list[dict[str, Any]]:
        results = []
        for path, (state, stages, report) in zip(
            paths, self._run(request, on_progress, should_stop, None, prepared), strict=True
        ):
            geometry = state.geometry
            with timed(stages, "decode"):
                wave = pipeline.decode_audio(self.components, state)
                with Mp4Writer(
                    path,
                    width=geometry.width,
                    height=geometry.height,
                    fps=geometry.fps,
                    sample_rate_hz=geometry.sample_rate_hz if request.audio else None,
                    metadata=clip_metadata(self.components, state, keep_paths=True),
                ) as writer:
                    if request.audio:
                        writer.write_wave(wave)
                    for frames in self._frames(state, report, should_stop):
                        writer.write_frames(frames)
            results.append(
                {
                    "path": str(path),
                    "frames": geometry.num_frames,
                    "seconds": geometry.duration_s,
                    "size": geometry.size,
                    "seed": state.seed,
                    "task": str(state.task),
                    "num_forwards": state.num_forwards,
                    "skipped_fraction": 0.0,
                    "stages_s": {name: round(value, 4) for name, value in stages.items()},
                    "warnings": state.warnings,
                    "conditions_used": state.conditions_used,
                }
            )
        return results

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

    def _run(
        self,
        request: VideoRequest,
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        noise: Noise | None,
        prepared: Prepared | None = None,
    ) -> Iterator[tuple[RequestState, dict[str, float], Reporter]]:
        """Yields each output denoised, with the seconds so far."""
        # The process has one count for all its engines; the last bits of this one's clips are its own's.
        torch.set_num_threads(self.components.config.threads)
        shared: dict[str, float] = {}
        report = Reporter(on_progress, num_outputs=request.num_outputs)
        with timed(shared, "prepare"):
            prepared = prepared or pipeline.prepare(self.components, request)
        report("prepare", 1, 1)
        with timed(shared, "encode"):
            encoded = pipeline.encode(self.components, prepared)
        report("encode", 1, 1)
        for output in range(request.num_outputs):
            report = Reporter(on_progress, output=output, num_outputs=request.num_outputs)
            stages = dict(shared) if output == 0 else {}
            with timed(stages, "denoise"):
                state = pipeline.pack(self.components, encoded, output=output, noise=noise)
                while not state.done:
                    _check(should_stop)
                    denoise_step(self.components, state)
                    report("denoise", state.step, state.num_forwards)
            yield state, stages, report

    def _frames(self, state: RequestState, report: Reporter, should_stop: ShouldStop | None) -> Iterator[np.ndarray]:
        done = 0
        for frames in pipeline.decode_video(self.components, state):
            _check(should_stop)
            yield frames
            done += frames.shape[0]
            report("decode", done, state.geometry.num_frames)


def _check(should_stop: ShouldStop | None) -> None:
    if should_stop is not None and should_stop():
        raise Cancelled("the request was cancelled")
