"""How a prompt is put on paper: sentences joined, capital letters, stops, commas, and rarely a slip of the keys."""

from __future__ import annotations

import random
import re

MOST_SENTENCES = 4
TYPO_SHARE, SHORTEST_WORD = 0.05, 5
KEYBOARD = {"a": "s", "e": "r", "i": "o", "l": "k", "n": "m", "o": "p", "r": "t", "s": "d", "t": "y", "u": "i"}


def finish(sentences: list[str], rng: random.Random) -> str:
    """One to four sentences as a person would type them."""
    parts = [tidy(s) for s in sentences if s]
    while len(parts) > MOST_SENTENCES:
        last = parts.pop()
        parts[-1] += f" and {last}"
    capitals = rng.random()
    separator = ". "
    if len(parts) > 1 and capitals < 0.12:
        separator = rng.choice((", ", "; ", " and ", "\n"))
    if capitals < 0.66 and separator == ". ":
        parts = [part[0].upper() + part[1:] for part in parts]
    text = separator.join(parts)
    text += rng.choice(("", ".", ".", ".")) if len(parts) == 1 else rng.choice((".", ".", ".", "", "!"))
    if rng.random() < 0.05:
        text = text.replace(",", "")
    if rng.random() < 0.03:
        text = text.replace(" and ", " & ")
    case = rng.random()
    if case < 0.02:
        text = text.upper()
    elif case < 0.04:
        text = text.title()
    return text


def tidy(text: str) -> str:
    """Commas that met a stop, an end or each other."""
    text = re.sub(r"\s*,\s*(?=[,.;]|$)", "", re.sub(r"\s+", " ", text.strip()))
    return re.sub(r",(?=\s(?:and|-|;|while)\b)", ",", re.sub(r"\s+,", ",", text))


def slip(text: str, rng: random.Random) -> str:
    """One long word with two letters swapped, one dropped, doubled or hit beside its key."""
    found = [m for m in re.finditer(r"[a-zA-Z]+", text) if len(m[0]) >= SHORTEST_WORD]
    if not found:
        return text
    word = rng.choice(found)
    at = rng.randrange(word.start() + 1, word.end() - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 1:
        return text[:at] + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + KEYBOARD.get(text[at].lower(), text[at]) + text[at + 1 :]
