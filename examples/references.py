"""A clip with the object of a picture and the timbre of a sound.

python examples/references.py [FOLDER]

The prompt names references by kind and number. The small checkpoint can take a sound for another timbre if its first
stroke does not lie on a multiple of 25 ms, as its model card says; the one of media/ lies at 0.5 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

from talkies import Condition, Engine, VideoRequest

MEDIA = Path(__file__).parent / "media"


def main(folder: Path) -> Path:
    """Writes ``like_both.mp4``."""
    folder.mkdir(parents=True, exist_ok=True)
    request = VideoRequest(
        prompt="the object from picture 1 bounces slowly on a dark background with the sound of audio 1",
        conditions=(
            Condition(kind="image", uri=str(MEDIA / "square.png")),
            Condition(kind="audio", uri=str(MEDIA / "bell.wav")),
        ),
    )
    clip = Engine.open().generate(request)
    for condition in clip.facts.conditions_used:
        print(condition)
    return clip.save(folder / "like_both.mp4")


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "clips")))
