"""What one option of an engine is, how a value is read from text or Python, and how a wrong one is refused.

No torch: the command line builds its flags from options before anything is loaded.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from talkies.adapters.named_path import NamedPath
from talkies.errors import ConfigError

Panel = Literal["Model", "Memory", "Devices", "Advanced"]
Kind = Literal["word", "words", "count", "size", "named_paths"]
UNITS = " KMGT"
TOGETHER = "engine"  # the parameter of a command that gets all options that were stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option. ``name`` is the field, keyword and TOML key; ``flag`` the word of the command line.

    ``peers`` are other spellings of the flag, ours or a peer's; ``synonyms`` are other words for values. A ``word``
    without ``choices`` is judged by the room that knows the choices.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    panel: Panel
    flag: str
    peers: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    low: int = 0
    high: int | None = None
    hint: str | None = None  # the way out, where the choices or limits alone do not say it

    def read(self, value: Any) -> Any:
        """The value that the engine works with, of text as typed or of a Python value; the default stays itself.

        Raises ``ConfigError`` that names the option, the value, what is allowed and what to do.
        """
        if value is None or value == self.default:
            return self.default
        match self.kind:
            case "word":
                return self._word(value)
            case "words":
                return self._words(value)
            case "count":
                return self._count(value)
            case "size":
                return parse_bytes(self.name, value)
            case "named_paths":
                return self._named_paths(value)

    def _refuse(self, what: str, hint: str | None = None) -> ConfigError:
        return ConfigError(what, hint=hint or self.hint, param=self.name)

    def _word(self, value: Any) -> str:
        word = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(word, str) or not word or (self.choices and word not in self.choices):
            hint = f"use {either(self.choices)}" if self.choices else None
            raise self._refuse(f"{self.name}={word!r} is unknown", self.hint or hint or "give a word")
        return word

    def _words(self, value: Any) -> tuple[str, ...]:
        """``a,b``, or a sequence of such; in order, each once."""
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise self._refuse(f"{self.name}={value!r} is not a list of names", "for example a,b")
        found: list[str] = []
        for name in filter(None, (name.strip() for part in parts for name in part.split(","))):
            meant = self.synonyms.get(name, (name,))
            if self.choices and not set(meant) <= set(self.choices):
                raise self._refuse(
                    f"no component is called {name!r}", "use " + ", ".join([*self.choices, *self._other])
                )
            found += [one for one in meant if one not in found]
        return tuple(found)

    @property
    def _other(self) -> list[str]:
        return [name for name in self.synonyms if name not in self.choices]

    def _named_paths(self, value: Any) -> tuple[NamedPath, ...]:
        """One text, or a sequence: commas may be in a path."""
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(NamedPath.parse(part) for part in parts)

    def _count(self, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refuse(f"{self.name}={value!r} is not a whole number")
        if value < self.low or (self.high is not None and value > self.high):
            if self.high is not None:
                raise self._refuse(f"{self.name}={value} is outside {self.low}..{self.high}")
            wrong = "is negative" if self.low == 0 else f"is under {self.low}"
            raise self._refuse(f"{self.name}={value} {wrong}", f"{self.low} or more")
        return value


def parse_bytes(name: str, value: Any) -> int | None:
    """``12GiB``, ``12G``, ``800MiB`` or plain bytes; a number of bytes is taken too. Raises ``ConfigError``."""
    if value is None:
        return None
    num_bytes = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", value.strip(), re.IGNORECASE)
        num_bytes = 0 if match is None else int(float(match[1]) * 1024 ** UNITS.index((match[2] or " ").upper()))
    if num_bytes <= 0:
        raise ConfigError(f"{name}={value!r} is not a size", hint="for example 12GiB", param=name)
    return num_bytes


def either(words: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def show_options(
    function: Callable[..., Any],
    own: inspect.Signature,
    shown: Callable[[Option], inspect.Parameter],
    rows: Iterable[Option],
    more: Iterable[inspect.Parameter] = (),
) -> list[inspect.Parameter]:
    """``function`` gets the signature ``own`` with a parameter for each of ``rows`` in place of the one that takes them
    together (``**options``, or ``engine`` of a command), and then ``more``. Returns its parameters."""
    kept = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD and one.name != TOGETHER]
    parameters = [*kept, *map(shown, rows), *more]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return parameters
