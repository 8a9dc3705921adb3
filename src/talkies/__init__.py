"""Talkies: the serving engine for joint audio-video diffusion.

from talkies import Engine

with Engine.open() as engine:
    clip = engine.generate(prompt="a red ball bounces with a bell sound", seed=7)
clip.frames  # uint8 [F, H, W, 3]
clip.audio   # float32 [2, N]
clip.save("clip.mp4")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from talkies.engine.events import Progress
from talkies.errors import (
    Busy,
    Cancelled,
    CheckpointError,
    ConfigError,
    InvalidRequest,
    MediaError,
    NotReady,
    NumericsError,
    OutOfMemory,
    OutputError,
    TalkiesError,
    TooLarge,
    UnsupportedTask,
    WorkerDied,
    WorkerHung,
)
from talkies.request import AdapterChoice, Condition, Target, Task, VideoRequest

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig
    from talkies.engine.engine import Engine
    from talkies.engine.pipeline.clip import Clip
    from talkies.engine.steps import Step

__version__ = "0.1.0"
__all__ = [
    "AdapterChoice",
    "Busy",
    "Cancelled",
    "CheckpointError",
    "Clip",
    "Condition",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "InvalidRequest",
    "MediaError",
    "NotReady",
    "NumericsError",
    "OutOfMemory",
    "OutputError",
    "Progress",
    "Step",
    "TalkiesError",
    "Target",
    "Task",
    "TooLarge",
    "UnsupportedTask",
    "VideoRequest",
    "WorkerDied",
    "WorkerHung",
    "__version__",
]

_LAZY = {
    "Clip": "talkies.engine.pipeline.clip",
    "Engine": "talkies.engine.engine",
    "EngineConfig": "talkies.engine.config",
    "Step": "talkies.engine.steps",
}


def __getattr__(name: str) -> Any:
    # The engine pulls torch in (seconds); a client that only builds requests must not pay for it.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'talkies' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What is loaded on first use is there, too: for help(), completion and those who look around.
    return sorted({*globals(), *__all__})
