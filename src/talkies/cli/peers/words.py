"""Words of a start line: flags with their values, ``--flag value`` or ``--flag=value``."""

from __future__ import annotations

from collections.abc import Sequence

from talkies.cli.peers.kinds import NO, YES


def valued(arguments: Sequence[str], names: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(flags of ``names`` with their values, the other arguments), in order; ``--flag value`` or ``--flag=value``."""
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in names:
            found.append((name, value if equals else next(words, "")))
        else:
            rest.append(word)
    return found, rest


def booleans(arguments: Sequence[str], names: Sequence[str]) -> tuple[dict[str, bool], list[str]]:
    """(flags of ``names`` with yes or no, the other arguments); a flag alone is a yes."""
    found: dict[str, bool] = {}
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        if not equals:
            value = words.pop(0) if words and words[0].lower() in (*YES, *NO) else "true"
        found[name] = value.lower() not in NO
    return found, rest


def one_value_each(arguments: Sequence[str], flags: Sequence[str], *, models: Sequence[str]) -> list[str]:
    """``--name a b`` as ``--name a --name b``: peers take several words after some flags.

    The last of several is the model where nothing else on the line is (neither its first word, nor a value of the flags
    ``models``), as in ``--name a FOLDER``.
    """
    words = list(arguments)
    named = any(word.partition("=")[0] in models for word in words) or bool(words and not words[0].startswith("-"))
    spread: list[str] = []
    while words:
        word = words.pop(0)
        if word not in flags:
            spread.append(word)
            continue
        values = []
        while words and not words[0].startswith("-"):
            values.append(words.pop(0))
        model = values[-1:] if len(values) > 1 and not named else []
        named = named or bool(model)
        values = values[: len(values) - len(model)]
        spread += [each for value in values for each in (word, value)] if values else [word]
        spread += model
    return spread
