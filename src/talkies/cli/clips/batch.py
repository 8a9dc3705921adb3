"""Many clips of one command: prompts from a file, several seeds, and the name of each clip's file.

A file of prompts is text with a prompt a line, or JSON lines: objects whose keys are flags of ``talkies generate``.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talkies.cli.clips.flags import ClipFlags
from talkies.errors import InvalidRequest
from talkies.request import VideoRequest

DEFAULT_PATTERN = "clip-{index:03}-{seed}.mp4"
FIELDS = ("index", "seed", "prompt")
MAX_CLIPS = 100_000
SLUG_CHARS = 40


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One clip: ``index`` counts prompts from 0, ``request`` has one output. ``line`` of the file, from 1."""

    index: int
    path: Path
    request: VideoRequest
    line: int | None = None


def is_pattern(output: Path) -> bool:
    """Whether a name holds fields to fill in."""
    return any(re.search(rf"\{{{name}(:[^{{}}]*)?\}}", str(output)) for name in FIELDS)


def wanted(
    flags: ClipFlags, prompts: Path | None, seeds: str | None, output: Path | None, base: VideoRequest | None = None
) -> list[Wanted]:
    """Every clip, in order: prompts in the order of the file, and of each the seeds. ``base``: see ``--from``.

    Raises ``InvalidRequest`` with the line of the file, and where two clips would have one name.
    """
    if prompts is not None and flags.prompt is not None:
        raise InvalidRequest(
            "a prompt and --prompts are both given", hint="give one of them, or put the prompt into the file"
        )
    if seeds is not None and flags.seed is not None:
        raise InvalidRequest("--seed and --seeds are both given", hint="give one of them", param="--seeds")
    several = _seeds(seeds) if seeds is not None else None
    pattern = str(output) if output is not None else DEFAULT_PATTERN
    entries: Sequence[tuple[int | None, dict[str, Any]]] = (
        read_prompts(prompts) if prompts is not None else [(None, {})]
    )
    found: list[Wanted] = []
    for index, (line, said) in enumerate(entries):
        with blamed_on(None if line is None else f"{prompts}, line {line}"):
            request = flags.having(said).request(base)
            for seed in several if several is not None and "seed" not in said else [request.seed]:
                for seed_of_output in range(seed, seed + request.num_outputs):
                    one = request.replace(seed=seed_of_output, num_outputs=1)
                    path = Path(_filled(pattern, index=index, seed=one.seed, prompt=slug(one.prompt)))
                    found.append(Wanted(index=index, path=path, request=one, line=line))
        if len(found) > MAX_CLIPS:
            raise InvalidRequest(f"these are over {MAX_CLIPS} clips", hint="divide the file", param="--prompts")
    _refuse_twins(found, pattern)
    return found


def read_prompts(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line, what it says) of each clip in a file, or on stdin where its name is ``-``. Blank lines are left out, and
    of text those that begin with ``#``.

    Raises ``InvalidRequest`` for a file that cannot be read or holds no prompt, and for a line that is not JSON where
    the first one is.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"cannot read {path}: {error}", hint="give a file of UTF-8 text, or - for stdin", param="--prompts"
        ) from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and lines[0][1].startswith("{"):
        return [(number, _object(path, number, line)) for number, line in lines]
    found: list[tuple[int, dict[str, Any]]] = [
        (number, {"prompt": line}) for number, line in lines if not line.startswith("#")
    ]
    if not found:
        raise InvalidRequest(f"{path} holds no prompt", hint="write a prompt a line", param="--prompts")
    return found


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{path}, line {number} is not JSON: {error}", hint="one object a line", param="--prompts"
        ) from None
    if not isinstance(said, dict):
        raise InvalidRequest(f"{path}, line {number} is not an object", hint="one object a line", param="--prompts")
    return said


@contextmanager
def blamed_on(what: str | None) -> Iterator[None]:
    """A refusal inside begins with ``what`` it is about, where that is said: one of several clips or lines."""
    try:
        yield
    except InvalidRequest as error:
        if what is not None:
            error.message = f"{what}: {error.message}"
        raise


def _seeds(text: str) -> list[int]:
    """``1,2,7`` or ``1..4``, or both."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(-?\d{1,19})\s*(?:\.\.\s*(-?\d{1,19})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + MAX_CLIPS:
            raise InvalidRequest(f"--seeds {text} is not a list of seeds", hint="for example 1,2,7 or 1..4")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def slug(prompt: str) -> str:
    """The beginning of a prompt as a part of a file's name."""
    words = re.findall(r"\w+", prompt.lower())
    text = "-".join(words)[:SLUG_CHARS].strip("-")
    return text or "clip"


def _filled(pattern: str, **values: Any) -> str:
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
        if not names <= set(FIELDS):
            raise KeyError(sorted(names - set(FIELDS))[0])
        return pattern.format(**values)
    except (KeyError, ValueError, IndexError) as error:
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise InvalidRequest(
            f"output {pattern} cannot be filled in: {error}",
            hint=f"fields are {known}, such as clips/{{index:03}}-{{seed}}.mp4; {{{{ is a brace",
            param="output",
        ) from None


def _refuse_twins(found: Sequence[Wanted], pattern: str) -> None:
    seen: dict[Path, Wanted] = {}
    for one in found:
        twin = seen.setdefault(one.path, one)
        if twin is not one:
            raise InvalidRequest(
                f"output {pattern} gives {one.path} to two clips (seed {twin.request.seed} of prompt {twin.index} and "
                f"seed {one.request.seed} of prompt {one.index})",
                hint="name each, for example clips/{index:03}-{seed}.mp4",
                param="output",
            )
