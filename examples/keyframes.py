"""A clip that begins as another one does: its first frame is given, and shows what the prompt does not say.

python examples/keyframes.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from talkies import Condition, Engine, VideoRequest


def main(folder: Path) -> tuple[Path, Path]:
    """Writes ``one.mp4`` and ``two.mp4``."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine.open()
    one = engine.generate(VideoRequest(prompt="a red ball bounces slowly on a dark background with a bell sound"))

    start = folder / "start.png"
    Image.fromarray(one.frames[0]).save(start)
    request = VideoRequest(
        prompt="the object bounces quickly with a drum sound",
        conditions=(Condition(kind="image", uri=str(start), role="first"),),
    )
    two = engine.generate(request)
    return one.save(folder / "one.mp4"), two.save(folder / "two.mp4")


if __name__ == "__main__":
    print(*main(Path(sys.argv[1] if len(sys.argv) > 1 else "clips")))
