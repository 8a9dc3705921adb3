"""Talkies: the serving engine for joint audio-video diffusion.

from talkies import Engine, VideoRequest

clip = Engine.open().generate(VideoRequest(prompt="a red ball bounces with a bell sound"))
clip.frames  # uint8 [F, H, W, 3]
clip.audio   # float32 [2, N]
clip.save("clip.mp4")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from talkies.errors import TalkiesError
from talkies.request import Condition, Target, Task, VideoRequest

if TYPE_CHECKING:
    from talkies.engine.engine import Engine
    from talkies.engine.pipeline.clip import Clip

__version__ = "0.1.0"
__all__ = ["Clip", "Condition", "Engine", "TalkiesError", "Target", "Task", "VideoRequest", "__version__"]

_LAZY = {"Engine": "talkies.engine.engine", "Clip": "talkies.engine.pipeline.clip"}


def __getattr__(name: str) -> Any:
    # The engine pulls torch in (seconds); a client that only builds requests must not pay for it.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'talkies' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What is loaded on first use is there, too: for help(), completion and those who look around.
    return sorted({*globals(), *__all__})
