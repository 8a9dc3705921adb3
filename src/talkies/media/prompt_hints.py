"""Hints about a prompt and its references: the model was trained on prompts that give each reference its role."""

from __future__ import annotations

import re
from collections.abc import Sequence

from talkies.request import Kind

WORDS: dict[Kind, str] = {"image": "Picture", "video": "Video", "audio": "Audio"}


def prompt_hints(prompt: str, references: Sequence[tuple[Kind, bool]], *, need_roles: bool = True) -> list[str]:
    """One line for each reference that the prompt never names, and for each name without its reference.

    ``references`` in request order, with whether a video brings its own sound: soundtracks share the numbers of
    sounds, but need no mention of their own. ``need_roles=False`` for keyframes, whose place says what they are.
    """
    counts = dict.fromkeys(WORDS.values(), 0)
    expected: list[tuple[str, int]] = []
    for kind, has_sound in references:
        word = WORDS[kind]
        counts[word] += 1
        expected.append((word, counts[word]))
        if kind == "video" and has_sound:
            counts["Audio"] += 1
    known = "|".join(counts)
    named = {(w.capitalize(), int(n)) for w, n in re.findall(rf"\b({known}) (\d{{1,2}})\b", prompt, re.IGNORECASE)}
    labels = {(w.capitalize(), int(n)) for w, n in re.findall(rf"<({known}) (\d{{1,2}})>", prompt, re.IGNORECASE)}
    hints = [f"the prompt never mentions <{w} {n}>" for w, n in expected if need_roles and (w, n) not in named]
    # Without references, plain words such as "video 2" are prose; a label in brackets is meant as one.
    dangling = named if references and need_roles else labels
    hints += [f"the prompt mentions <{w} {n}>, but there is none" for w, n in sorted(dangling) if n > counts[w]]
    return hints
