"""Single values of a request: their kinds and limits, each refused by name. Nothing here knows a checkpoint."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from talkies.errors import InvalidRequest, TalkiesError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MIN_SIGMAS, MAX_SIGMAS = 2, 200
MIN_GAP = 1e-4  # between two sigma points: closer ones may be one number in float32, after the shift above all
MIN_SHIFT, MAX_SHIFT = 1e-3, 1e3  # beyond, points of the grid coincide or vanish in float32
MAX_PROMPT_BYTES = 1 << 20
MAX_ADAPTERS, MAX_STRENGTH = 16, 100.0  # of one request; an adapter counts at most so many times
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAMED_RATIOS: Mapping[str, tuple[int, int]] = {
    "21:9": (21, 9),
    "16:9": (16, 9),
    "4:3": (4, 3),
    "1:1": (1, 1),
    "3:4": (3, 4),
    "9:16": (9, 16),
}


def check_prompt(prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise InvalidRequest(
            f"prompt must be text, got {type(prompt).__name__}", hint="describe the clip in words", param="prompt"
        )
    if any("\ud800" <= ch <= "\udfff" for ch in prompt):
        raise InvalidRequest("prompt holds lone surrogates, which are not text", hint="send UTF-8", param="prompt")
    # Zero-width characters, marks of direction and NUL show nothing either, and str.strip leaves them.
    if not any(ch.isprintable() and not ch.isspace() for ch in prompt):
        raise InvalidRequest("prompt is empty or blank", hint="describe the clip in words", param="prompt")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise InvalidRequest(
            f"prompt has {len(prompt)} characters, over the limit of {MAX_PROMPT_BYTES}",
            hint="shorten it",
            param="prompt",
        )


def check_ladder(sigmas: Any) -> tuple[float, ...]:
    try:
        ladder = tuple(float(s) for s in sigmas)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(
            "sigmas must be a list of numbers", hint="for example 1.0, 0.7, 0.4, 0.15, 0.0", param="sigmas"
        ) from None
    if not MIN_SIGMAS <= len(ladder) <= MAX_SIGMAS:
        raise InvalidRequest(
            f"sigmas has {len(ladder)} points, outside {MIN_SIGMAS}..{MAX_SIGMAS}",
            hint="N points are N-1 forwards",
            param="sigmas",
        )
    decreasing = all(a > b for a, b in itertools.pairwise(ladder))
    if not (decreasing and ladder[0] <= 1.0 and ladder[-1] == 0.0):
        raise InvalidRequest(
            "sigmas must fall strictly from at most 1.0 to exactly 0.0",
            hint="for example 1.0, 0.7, 0.4, 0.15, 0.0",
            param="sigmas",
        )
    close = next(((a, b) for a, b in itertools.pairwise(ladder) if a - b < MIN_GAP * (1 - 1e-9)), None)
    if close is not None:
        raise InvalidRequest(
            f"sigmas {close[0]} and {close[1]} are {close[0] - close[1]:.2g} apart, under {MIN_GAP:g}",
            hint="leave one of them out",
            param="sigmas",
        )
    return ladder


def check_adapter_name(name: Any, error: type[TalkiesError] = InvalidRequest, *, param: str) -> None:
    """Raises ``error``: a name is read in lists, in URLs and behind ``=``."""
    if not isinstance(name, str) or not _ADAPTER_NAME.fullmatch(name):
        shown = repr(name)[:80]
        raise error(
            f"adapter name {shown} is not a name",
            hint="use 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first",
            param=param,
        )


def check_instance(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(
            f"{name} must be a {kind.__name__}, got {type(value).__name__}", hint="see docs/requests.md", param=name
        )


def check_one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(
            f"{name}={value!r} is unknown", hint="use one of " + ", ".join(map(str, allowed)), param=name
        )


def check_integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name}={value!r} is not an integer", hint=f"{low}..{high}", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name}={value} is outside {low}..{high}", hint="choose a value inside", param=name)


def check_number(name: str, value: Any, low: float, high: float, *, exclusive_min: bool = False) -> None:
    bounds = f"{'(' if exclusive_min else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequest(f"{name}={value!r} is not a finite number", hint=f"a number in {bounds}", param=name)
    if value < low or value > high or (exclusive_min and value == low):
        raise InvalidRequest(f"{name}={plain(value)} is outside {bounds}", hint="choose a value inside", param=name)


def plain(value: float) -> str:
    """A number for messages: short where that is exact, whole where a shortened one would be another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def parse_size(text: str) -> tuple[int, int]:
    """``"1344x768"`` -> (1344, 768)."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX×]\s*(\d{1,9})\s*", text) if isinstance(text, str) else None
    if not match:
        raise InvalidRequest(f"size={text!r} is not WIDTHxHEIGHT", hint="for example 112x64", param="size")
    return int(match[1]), int(match[2])


def parse_ratio(text: str) -> float:
    """``"16:9"`` or ``"1.7778"`` -> width / height. Raises ``InvalidRequest`` naming ``aspect``."""
    match = re.fullmatch(r"\s*(\d{1,5}(?:\.\d{1,9})?)\s*(?:[:/]\s*(\d{1,5}(?:\.\d{1,9})?)\s*)?", str(text))
    if match:
        width, height = float(match[1]), float(match[2] or 1)
        if width > 0 and height > 0:
            return width / height
    raise InvalidRequest(
        f"aspect={text!r} is not a ratio",
        hint="use one of " + ", ".join(NAMED_RATIOS) + ", W:H, or auto",
        param="aspect",
    )
