"""Values of one field, as JSON or as a form carries them -> plain Python. JSON is strict, a form is text."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from talkies.errors import InvalidRequest

# Not \s: it also matches separators that int() and float() refuse.
_NUMBER = r"[ \t]*[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?[ \t]*"
MAX_DIGITS = 40  # far over int64, and too few to make int() slow


def coerce(name: str, kind: str, value: Any, *, form: bool) -> Any:
    """``value`` as the JSON type ``kind`` of :mod:`talkies.server.intake.fields`. Raises naming ``name``."""
    if kind == "text":
        return _text(name, value)
    if kind == "ratio":
        return _ratio(name, value)
    if kind == "integer":
        return _integer(name, value, form)
    if kind == "number":
        return _number(name, value, form)
    if kind == "boolean":
        return _boolean(name, value, form)
    if kind in ("integer_or_list", "number_or_list"):
        one = _integer if kind.startswith("integer") else _number
        if form and isinstance(value, str) and value.strip().startswith("["):
            value = parse_json(name, value)
        if isinstance(value, list):
            return [one(name, v, form) for v in value]
        return one(name, value, form)
    if kind in ("object", "list"):
        return _container(name, kind, value)
    return value


def parse_json(name: str, text: str | bytes) -> Any:
    """Strict JSON: no NaN or Infinity, no number of ten thousand digits, no tower of brackets."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_bounded_int)
    except RecursionError:
        raise InvalidRequest(f"Invalid JSON in {name}: nested too deeply", param=name) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Invalid JSON in {name}: {error}", hint="send valid JSON", param=name) from None


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text, got {kind_of(value)}", param=name)
    return value


def _ratio(name: str, value: Any) -> str:
    # Width over height as one number, as vLLM-Omni takes it: 1.7778 is "1.7778".
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return _text(name, value)


def _integer(name: str, value: Any, form: bool) -> int:
    if form and isinstance(value, str) and re.fullmatch(rf"[ \t]*[+-]?[0-9]{{1,{MAX_DIGITS}}}[ \t]*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # JSON has one number type: 5.0 is 5
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name}={shown(value)} is not an integer", param=name)
    return value


def _number(name: str, value: Any, form: bool) -> float:
    # `seconds` is digits in a string in OpenAI's JSON as well, so numeric text is a number everywhere.
    if isinstance(value, str) and re.fullmatch(_NUMBER, value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name}={shown(value)} is not a number", param=name)
    number = float(value)
    if not math.isfinite(number):
        raise InvalidRequest(f"{name}={shown(value)} is not finite", param=name)
    return number


def _boolean(name: str, value: Any, form: bool) -> bool:
    if form and isinstance(value, str) and value.strip().lower() in ("true", "false", "1", "0"):
        return value.strip().lower() in ("true", "1")
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}={shown(value)} is not true or false", param=name)
    return value


def _container(name: str, kind: str, value: Any) -> Any:
    # vLLM-Omni's clients send these objects as JSON text, also inside a JSON body.
    if isinstance(value, str):
        value = parse_json(name, value)
    wanted = dict if kind == "object" else list
    if not isinstance(value, wanted):
        raise InvalidRequest(
            f"{name}: expected {'an' if kind == 'object' else 'a'} {kind}, got {kind_of(value)}", param=name
        )
    return value


def kind_of(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "integer", float: "number"}
    return "null" if value is None else names.get(type(value), "file")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
