"""Which prompts the generator may not write: those with the skeleton of a prompt that measures the model.

A skeleton is a text without articles, stops and capital letters, in which words of a kind are one word: "the blue box
hops!" and "A red ball bounces." share COLOR SHAPE VERBS. `held_out.txt` has a digest of each skeleton of the test
prompts, so that the generator neither holds nor imitates them. After a change of those prompts or of this file:

    python -m training.second_edition.prompts.held_out bench/meaning/plain_prompts.jsonl
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path

from training.second_edition.prompts import words

FILE = Path(__file__).with_name("held_out.txt")
DROPPED = frozenset(("a", "an", "the", "one", "single", "please", "1"))


def _tables() -> dict[str, Iterable[str]]:
    verbs = [form for motion in ("bounce", "flash") for form in words.VERBS[motion]]
    verbs += [*words.SLIDE_VERBS, *chain(*words.TEMPO_SLIDE_VERBS.values())]
    finite, participle, base = ([form[i].split()[0] for form in verbs] for i in range(3))
    return {
        "COLOR": [phrase.split()[-1] for phrase in chain(*words.COLORS.values())] + list(words.LOOSE_COLORS),
        "SHAPE": chain(words.ANY_SHAPE, *words.SHAPES.values()),
        "SIZE": chain(*words.SIZES.values()),
        "PACE": chain(*words.ADVERBS.values(), *words.TEMPO_ADJECTIVES.values()),
        "SURFACE": chain(*words.SURFACES.values()),
        "BACKDROP": words.BACKDROPS,
        "TIMBRE": ("bell", "drum", "beep"),
        "TIMBRES": ("bells", "drums", "beeps"),
        "SIDE": ("left", "right"),
        "VERBS": set(finite) - {"keeps", "lights"},
        "VERBING": participle,
        "VERB": set(base) - {"keep", "light"},
    }


@lru_cache
def slots() -> dict[str, str]:
    return {word: slot for slot, table in _tables().items() for phrase in table for word in [phrase] if " " not in word}


def skeleton(text: str) -> str:
    kinds = slots()
    found = re.findall(r"[a-z0-9'-]+", text.lower())
    return " ".join(kinds.get(word, word) for word in found if word not in DROPPED)


def digest(text: str) -> str:
    return hashlib.sha256(skeleton(text).encode()).hexdigest()[:16]


@lru_cache
def _held_out() -> frozenset[str]:
    return frozenset(FILE.read_text().split())


def is_held_out(text: str) -> bool:
    return digest(text) in _held_out()


if __name__ == "__main__":
    prompts = [json.loads(line)["prompt"] for line in Path(sys.argv[1]).read_text().splitlines()]
    FILE.write_text("\n".join(sorted({digest(p) for p in prompts})) + "\n")
