"""Words that a newcomer reads: sentences of README are short, and the help of each option can be read alone.

A help of an option is whole sentences, says more than a few words, begins with no word that points at its neighbours,
and says what happens without the option, unless the page of help shows that anyway.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from talkies.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 35
LEAST_WORDS = 6
# Words that mean something only beside the help of another option.
POINTS_AWAY = {
    "also",
    "and",
    "it",
    "its",
    "like",
    "of",
    "only",
    "or",
    "same",
    "such",
    "that",
    "the same",
    "they",
}
POINTS_AWAY |= {"these", "this", "those", "what", "which"}
# Sentences that stopped readers once.
STOPPED = [
    "in chunks 5.0 GiB at 1 % less",
    "fp8 4.3 GiB at 0.2 % less",
    "93.4 % right in all they were asked for",
    "makes jobs belong to their key",
    "39.85 GB a card is published",
    "Such as 12GiB; never passed.",
    "The same of host memory.",
    "Of /v1/videos/sync; none.",
    "DiT blocks that stay.",
    "What layer and module are about.",
    "Print it.",
]


def sentences(text):
    """Sentences of Markdown: paragraphs, items and cells of tables; blocks of code are none."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] |\|)", text):
        parts += paragraph.split("|") if paragraph.lstrip().startswith("|") else [paragraph]
    whole = [" ".join(part.split()) for part in parts]
    return [one for part in whole for one in re.split(r"(?<=[.:;?!])[*_]*\s+(?=[A-Z`*\"])", part) if one]


def helps():
    """(command and option, parameter, help) of everything that a visible command takes."""

    def walk(command, names):
        for name, below in getattr(command, "commands", {}).items():
            if not below.hidden:
                yield from walk(below, [*names, name])
        for one in command.params:
            if one.name != "help" and not getattr(one, "hidden", False):
                yield " ".join([*names, max(one.opts, key=len)]), one, getattr(one, "help", None) or ""

    return list(walk(typer.main.get_command(app), []))


def faults(text, *, default_is_shown):
    """What keeps a help from being read alone."""
    found = []
    first = text.split()[:1]
    if len(text.split()) < LEAST_WORDS:
        found.append(f"has fewer than {LEAST_WORDS} words")
    if first and (first[0].lower() in POINTS_AWAY or text.lower().startswith("the same ")):
        found.append(f"begins with {first[0]!r}, which points at another option")
    if re.search(r"\b(above|below)\b(?! which)", text):
        found.append("points above or below, where another page has something else")
    if not text.endswith("."):
        found.append("is not a sentence")
    found += [f"has a sentence of {len(one.split())} words" for one in sentences(text) if len(one.split()) > MOST_WORDS]
    if not default_is_shown and not re.search(r"\b(default|without|absent|instead of|required)\b", text, re.I):
        found.append("does not say what happens without it")
    return found


def shows_default(one):
    """Whether the page of help says what absence means: a switch is off, a required one has no absence."""
    if one.required or getattr(one, "is_flag", False):
        return True
    return isinstance(one.show_default, str) or (bool(one.show_default) and one.default not in (None, "", [], ()))


def test_every_help_can_be_read_alone():
    found = helps()
    assert len(found) > 150
    wrong = {
        where: wrongs for where, one, text in found if (wrongs := faults(text, default_is_shown=shows_default(one)))
    }
    assert wrong == {}


@pytest.mark.parametrize("text", [*STOPPED[-6:], "", "An MP4", "Where the server is.", "Bearer key."])
def test_a_help_that_cannot_is_found(text):
    assert faults(text, default_is_shown=True)


def test_a_default_that_nobody_says_is_found():
    assert faults("How many jobs may wait for their turn.", default_is_shown=False)
    assert not faults("How many jobs may wait for their turn. The default is 64.", default_is_shown=False)


def test_readme_has_no_long_sentence():
    found = sentences(README)
    assert len(found) > 60
    assert [(len(one.split()), one) for one in found if len(one.split()) > MOST_WORDS] == []


def test_a_long_sentence_is_found():
    text = "Short. " + "word " * 36 + "end.\n\n```sh\n" + "code " * 50 + "\n```\n\n| " + "cell " * 36 + "| b |\n"
    assert sum(len(one.split()) > MOST_WORDS for one in sentences(text)) == 2


def test_sentences_that_stopped_readers_are_gone():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "training").rglob("*.md")]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in pages]
    texts += [(where, text) for where, _, text in helps()]
    assert [(n, s) for n, text in texts for s in STOPPED if s in " ".join(text.split())] == []
