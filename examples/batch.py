"""Many clips with one engine: weights are read once, and clips that are there already are not made again.

python examples/batch.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from talkies import Engine, TalkiesError, VideoRequest

PROMPTS = [
    "a red ball bounces slowly on a dark background with a bell sound",
    "a blue square slides right quickly with a drum sound",
]
SEEDS = [1, 2]
NUM_SIGMAS = 6  # 5 forwards: a draft. Without it the checkpoint's own number


def main(folder: Path) -> list[Path]:
    """Makes what is missing in ``folder``; returns all paths."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        folder / f"{index:03}-{seed}.mp4": VideoRequest(prompt=prompt, seed=seed, num_sigmas=NUM_SIGMAS)
        for index, prompt in enumerate(PROMPTS)
        for seed in SEEDS
    }
    missing = {path: request for path, request in wanted.items() if not path.exists()}
    engine = Engine.open() if missing else None
    for done, (path, request) in enumerate(missing.items(), start=1):
        assert engine is not None
        try:
            engine.generate(request).save(path)
        except TalkiesError as error:  # one wrong prompt does not end the night's work
            print(f"{path}: {error}", file=sys.stderr)
            continue
        print(f"{done} of {len(missing)}: {path}")
    return [path for path in wanted if path.exists()]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "clips"))
