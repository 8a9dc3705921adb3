"""The card of a checkpoint: every word that its prompts can hold, counted by drawing them, and what it was trained for.

python -m training.card src/talkies/assets/h3-tiny
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from talkies.files.card import FILE_NAME, card_words
from training import prompts
from training.ref2va import reference_prompts

# The first edition's world, as a phrase that ends "the checkpoint knows ...".
KNOWS = (
    "one ball, square or triangle of eight colours that bounces, slides, flashes or stays, "
    "slowly or fast, with a bell, a drum, a beep or no sound, on a dark or light background"
)
DRAWS = 20_000  # of each kind of prompt: the rarest word of the grammars stands in one of a few hundred


def first_edition_prompts(draws: int = DRAWS, seed: int = 0) -> Iterator[str]:
    """Prompts of every kind that the first edition's two DiTs saw, by the grammars that they were trained with."""
    rng = random.Random(seed)
    values = {
        "color": prompts.COLOR_WORDS,
        "shape": prompts.SHAPE_WORDS,
        "size": prompts.SIZE_WORDS,
        "place": prompts.PLACE_WORDS,
        "motion": prompts.MOTION_WORDS,
        "tempo": prompts.TEMPO_WORDS,
        "background": prompts.BACKGROUND_WORDS,
        "sound": prompts.SOUND_WORDS,
    }
    for _ in range(draws):
        attributes = {name: rng.choice(list(words)) for name, words in values.items()}
        for kind in ("t2va", "fl2va"):
            yield prompts.prompt(attributes, rng, kind)[0]
        yield reference_prompts.prompt(attributes, rng, rng.choice(reference_prompts.KINDS))


def write_card(folder: Path, texts: Iterable[str], *, knows: str, locks: Sequence[str] = ()) -> Path:
    """`card.json` beside the checkpoint's `model_index.json`. `locks`: the roles that were trained."""
    card: dict[str, Any] = {"knows": knows, "words": card_words(texts), "locks": sorted(locks)}
    path = folder / FILE_NAME
    path.write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    args = parser.parse_args()
    path = write_card(args.folder, first_edition_prompts(args.draws), knows=KNOWS)
    print(path, len(json.loads(path.read_text(encoding="utf-8"))["words"]), "words")


if __name__ == "__main__":
    main()
