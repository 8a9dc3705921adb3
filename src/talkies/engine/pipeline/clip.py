"""A finished clip, and the metadata that lets it be made again."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from talkies.engine.port.facts import Facts
from talkies.errors import InvalidRequest
from talkies.media.write.mp4 import write_mp4
from talkies.request import VideoRequest


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Clip:
    """``frames`` uint8 [F, H, W, 3] at ``fps``; ``audio`` float32 [2, N] in -1..1 at ``sample_rate_hz``.

    ``metadata`` holds the request with every default filled in; ``facts`` is what else is known: warnings, what became
    of the conditions, the seconds of each stage. Two clips are equal only if they are the same object.
    """

    frames: np.ndarray
    audio: np.ndarray
    fps: int
    sample_rate_hz: int
    request: VideoRequest
    metadata: Mapping[str, Any]
    facts: Facts

    @property
    def duration_s(self) -> float:
        return self.frames.shape[0] / self.fps

    @property
    def stages_s(self) -> Mapping[str, float]:
        """The seconds of each stage."""
        return self.facts.stages_s

    def save(self, path: str | Path) -> Path:
        """Write an MP4. Raises ``InvalidRequest`` for a name that promises another format, ``OutputError`` when it
        cannot be written; then it leaves nothing behind."""
        path = Path(path)
        if path.suffix.lower() != ".mp4":
            ending = f"ends in {path.suffix}" if path.suffix else "has no extension"
            raise InvalidRequest(
                f"{path.name!r} {ending}, and a clip is saved as .mp4 only",
                hint=f"name it {path.stem or 'clip'}.mp4",
                param="path",
            )
        write_mp4(
            path,
            self.frames,
            self.audio if self.request.audio else None,
            fps=self.fps,
            sample_rate_hz=self.sample_rate_hz,
            metadata=dict(self.metadata),
        )
        return path

    def __repr__(self) -> str:
        frames, height, width = self.frames.shape[:3]
        sound = f"sound at {self.sample_rate_hz} Hz" if self.request.audio else "no sound"
        length = f"{frames} frames at {self.fps} a second"
        return f"<Clip {width}x{height}, {length} ({self.duration_s:.2f} s), {sound}, seed {self.facts.seed}>"

    def _repr_html_(self) -> str:
        """A player, for notebooks: the MP4 itself is in the page."""
        with TemporaryDirectory() as folder:
            data = self.save(Path(folder) / "clip.mp4").read_bytes()
        source = f"data:video/mp4;base64,{base64.b64encode(data).decode('ascii')}"
        return f'<video controls loop width="{max(self.frames.shape[2], 320)}" src="{source}"></video>'
