"""What a program sees of a clip while it is made: each step with its latents and a preview, each frame in its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from talkies.engine.load.build import Components
from talkies.engine.pipeline.path import target_latents
from talkies.engine.pipeline.preview import Peek, decode_still
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts
from talkies.errors import InvalidRequest
from talkies.h3.packing import audio_to_rows, patchify_video

Units: TypeAlias = Generator[None, None, list[Facts]]  # one step of it is one unit of work
Latents: TypeAlias = tuple[Tensor, Tensor]  # normalized: video [1, C, T, h, w] and audio [2, C, Ta], float32


class Step:
    """Step ``step`` of ``num_steps`` of output ``output`` is done. Valid inside the call that it was handed to."""

    def __init__(self, components: Components, state: RequestState, output: int, peek: Peek) -> None:
        self.step, self.num_steps, self.output, self.seed = state.step, state.num_forwards, output, state.seed
        self.cancelled = False
        self._components, self._state, self._peek = components, state, peek

    def latents(self) -> Latents:
        """A copy on the CPU of the clip as it is now: video [1, C, T, h, w] and audio [2, C, Ta], float32, normalized.
        Those of the last step are what :meth:`Engine.decode` takes."""
        video, audio = target_latents(self._state)
        return video.detach().cpu().clone(), audio.detach().cpu().clone()

    def preview(self) -> np.ndarray:
        """The middle frame as it would become from here, uint8 [H, W, 3]; one small decode. Pictures of over 640 pixels
        are thinned. Raises ``NumericsError`` where it is not finite."""
        self._components.residency.enter("video")
        return decode_still(self._components.video, self._peek.x0(self._state)).numpy()

    def cancel(self) -> None:
        """The request ends here, with ``Cancelled``."""
        self.cancelled = True


OnStep: TypeAlias = Callable[[Step], object]


@torch.inference_mode()
def put_latents(state: RequestState, latents: Latents) -> None:
    """The state after its last step, with these latents of its target. Raises ``InvalidRequest`` for another shape."""
    for name, had, got in zip(("video", "audio"), target_latents(state), latents, strict=True):
        if not isinstance(got, Tensor) or got.shape != had.shape:
            shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
            raise InvalidRequest(
                f"{name} latents of this request are {tuple(had.shape)}, got {shape}",
                hint="give the request that they were made with",
                param="latents",
            )
    g, layout = state.geometry, state.layout
    video = patchify_video(latents[0].float(), (1, g.patch_size, g.patch_size))
    audio = audio_to_rows(latents[1].float())
    state.video_rows[layout.num_condition_video_rows :] = video.to(state.video_rows.device)
    state.audio_rows[layout.num_condition_audio_rows :] = audio.to(state.audio_rows.device)
    state.step = state.num_forwards


class Stream:
    """The frames of a clip, uint8 [H, W, 3], in order, each when it is decoded: ``for frame in engine.stream(...)``.

    ``audio``, float32 [2, N] in -1..1 at ``sample_rate_hz``, is there before the first frame, ``facts`` after the last
    one. It holds the engine until it ends or is closed; one thread takes all of it.
    """

    def __init__(self, units: Callable[[Callable[[RequestState], FrameSink]], Units]) -> None:
        self.audio: np.ndarray | None = None
        self.fps = self.sample_rate_hz = 0
        self.facts: Facts | None = None
        self._ready: deque[np.ndarray] = deque()
        self._units = units(self._open)

    def _open(self, state: RequestState) -> FrameSink:
        self.fps, self.sample_rate_hz = state.geometry.fps, state.geometry.sample_rate_hz
        return FrameSink(self)

    def close(self) -> None:
        """Ends the request where it is."""
        self._units.close()

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        while not self._ready:
            try:
                next(self._units)
            except StopIteration as end:
                self.facts = end.value[0] if end.value else self.facts
                raise StopIteration from None
        return self._ready.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class FrameSink:
    """Hands what is decoded to a :class:`Stream`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write_wave(self, wave: np.ndarray) -> None:
        self._stream.audio = wave

    def write_frames(self, frames: np.ndarray) -> None:
        self._stream._ready.extend(frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        pass
