"""What a checkpoint says of itself in its ``card.json``: the words it has seen, and which locks it was trained with.

The card lies beside the checkpoint's ``model_index.json`` and may have three keys: ``knows`` (a phrase that ends the
sentence "the checkpoint knows ..."), ``words`` (every form that its training could print: lower case, plurals spelled
out, compounds in their parts) and ``locks`` (``soundtrack``, ``footage``). A checkpoint without one has seen
language at large: nothing is said of any word, and locks run in the mode that needs no training.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talkies.condition import LOCK_KINDS
from talkies.errors import CheckpointError
from talkies.files.json_files import read_json

FILE_NAME = "card.json"
KEYS = ("knows", "words", "locks")
MAX_SHOWN = 8  # words that a warning names
MAX_WORD_CHARS = 24  # of each: Chinese has no spaces, and a prompt may be one word of thousands of letters
# Letters, digits and apostrophes between them. An underscore or a hyphen parts words.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_LABEL = re.compile(r"<(?:picture|video|audio) \d{1,2}>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """``words`` empty: nobody says which words it knows."""

    knows: str = ""
    words: frozenset[str] = frozenset()
    locks: frozenset[str] = frozenset()

    def notes(self, prompt: str) -> list[str]:
        """For the user: the words of a prompt that the checkpoint has never seen, in one sentence, or nothing."""
        if not self.words:
            return []
        unknown = unknown_words(prompt, self.words)
        if not unknown:
            return []
        shown = ", ".join(_shortened(word) for word in unknown[:MAX_SHOWN])
        more = f" and {len(unknown) - MAX_SHOWN} more" if len(unknown) > MAX_SHOWN else ""
        knows = f"the checkpoint knows {self.knows or f'{len(self.words)} words'}"
        return [f"{knows}; it did not understand: {shown}{more}"]


def read_card(root: Path) -> Card:
    """The card of the checkpoint in ``root``; an empty one where there is none. Raises ``CheckpointError``."""
    path = root / FILE_NAME
    if not path.is_file():
        return Card()
    found = read_json(path)
    unknown = sorted(set(found) - set(KEYS))
    if unknown:
        raise CheckpointError(
            f"{path}: unknown keys {', '.join(unknown)}", hint=f"known: {', '.join(KEYS)}", param=str(path)
        )
    knows = found.get("knows", "")
    if not isinstance(knows, str):
        raise CheckpointError(f"{path}: knows is {knows!r}, not a text", param=str(path))
    locks = _texts(found, "locks", path)
    strange = sorted(locks - set(LOCK_KINDS))
    if strange:
        raise CheckpointError(
            f"{path}: locks has {', '.join(strange)}", hint=f"known: {', '.join(LOCK_KINDS)}", param=str(path)
        )
    return Card(knows=knows, words=_texts(found, "words", path), locks=locks)


def words_of(text: str) -> list[str]:
    """The words of a text as a card spells them: lower case, in their order. ``<Picture 1>`` and its like are none."""
    plain = unicodedata.normalize("NFKC", _LABEL.sub(" ", text)).casefold().replace("\u2019", "'")
    return _WORD.findall(plain)


def unknown_words(text: str, known: Collection[str]) -> list[str]:
    """Those of ``text`` that are not in ``known``, each once, in their order. Of "the ball's" the ball counts."""
    unknown = (word for word in words_of(text) if word not in known and word.removesuffix("'s") not in known)
    return list(dict.fromkeys(unknown))


def card_words(prompts: Iterable[str]) -> list[str]:
    """What a card writes of the prompts that a checkpoint was trained on: each word once, sorted."""
    return sorted({word for prompt in prompts for word in words_of(prompt)})


def _texts(found: Mapping[str, Any], key: str, path: Path) -> frozenset[str]:
    values = found.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{path}: {key} is not a list of texts", param=str(path))
    return frozenset(values)


def _shortened(word: str) -> str:
    return word if len(word) <= MAX_WORD_CHARS else f"{word[: MAX_WORD_CHARS - 1]}…"
