"""A finished clip, and the metadata that lets it be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from talkies.media.write.mp4 import write_mp4
from talkies.request import VideoRequest


@dataclass(frozen=True, kw_only=True)
class Clip:
    """``frames`` uint8 [F, H, W, 3] at ``fps``; ``audio`` float32 [2, N] in -1..1 at ``sample_rate_hz``.

    ``metadata`` holds the request with every default filled in; ``stages_s`` the seconds of each stage.
    """

    frames: np.ndarray
    audio: np.ndarray
    fps: int
    sample_rate_hz: int
    request: VideoRequest
    metadata: Mapping[str, Any]
    stages_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.frames.shape[0] / self.fps

    def save(self, path: str | Path) -> Path:
        """Write an MP4. Raises ``OutputError`` and leaves nothing behind when it cannot be written."""
        path = Path(path)
        write_mp4(
            path,
            self.frames,
            self.audio if self.request.audio else None,
            fps=self.fps,
            sample_rate_hz=self.sample_rate_hz,
            metadata=dict(self.metadata),
        )
        return path
