"""Where an output goes while it decodes: into a file, or into memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np

from talkies.engine.load.build import Components
from talkies.engine.pipeline.clip import Clip
from talkies.engine.pipeline.metadata import clip_metadata
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts
from talkies.media.write.mp4 import Mp4Writer


class Sink(Protocol):
    """Takes the sound, float32 [2, N], then the frames in order, uint8 [f, H, W, 3]. Neither is changed afterwards."""

    def write_wave(self, wave: np.ndarray) -> None: ...

    def write_frames(self, frames: np.ndarray) -> None: ...


# (output, its state after the last forward, what is known of it) -> what takes it: whole where the block ends well,
# abandoned where it raises.
OpenSink: TypeAlias = Callable[[int, RequestState, Facts], AbstractContextManager[Sink]]


class Mp4Sink(Mp4Writer):
    """An MP4, written while the next frames decode."""

    @classmethod
    def of(cls, components: Components, path: Path, state: RequestState, facts: Facts) -> Self:
        g = state.geometry
        return cls(
            path,
            width=g.width,
            height=g.height,
            fps=g.fps,
            sample_rate_hz=g.sample_rate_hz if state.request.audio else None,
            metadata=clip_metadata(components, state, facts),
        )

    def write_wave(self, wave: np.ndarray) -> None:
        """The sound of a request without sound is decoded, so that it fails the same way, and left out here."""
        if self.sample_rate_hz is not None:
            super().write_wave(wave)


class ClipSink:
    """Arrays in memory, for a :class:`Clip`."""

    def __init__(self, components: Components, state: RequestState, facts: Facts) -> None:
        self._request, self._geometry = state.request, state.geometry
        self._metadata = clip_metadata(components, state, facts)
        self._chunks: list[np.ndarray] = []
        self._frames: np.ndarray
        self._wave: np.ndarray

    def write_wave(self, wave: np.ndarray) -> None:
        self._wave = wave

    def write_frames(self, frames: np.ndarray) -> None:
        self._chunks.append(frames)

    def clip(self, facts: Facts) -> Clip:
        """The finished clip; ``facts`` now with what it took."""
        return Clip(
            frames=self._frames,
            audio=self._wave,
            fps=self._geometry.fps,
            sample_rate_hz=self._geometry.sample_rate_hz,
            request=self._request,
            metadata=self._metadata,
            facts=facts,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._frames = np.concatenate(self._chunks)
        self._chunks.clear()
