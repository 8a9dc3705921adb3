"""``--config FILE.toml``: keys are flag names, at the top or in a table that has the command's name."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import typer

from talkies.cli.common import fail
from talkies.errors import ConfigError


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Keys of the file become defaults: flag > environment > file > default.

    One file may serve several commands: at its top, what another command knows is left to that one, and so are other
    commands' tables. A key that nobody knows ends the command.
    """
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        hint = f"see talkies {context.info_name} --help"
        fail(ConfigError(f"cannot read {path}: {error}", hint=hint, param="config"))
    own = _keys(context.command)
    commands = getattr(context.find_root().command, "commands", {})
    elsewhere = {key for command in commands.values() for key in _all_keys(command)} - own.keys()
    tables = {name: values.pop(name) for name in list(values) if isinstance(values[name], dict) and name in commands}
    defaults: dict[str, Any] = {}
    for table, foreign in ((values, elsewhere), (tables.get(str(context.info_name), {}), set())):
        for key, value in table.items():
            name = key.replace("-", "_")
            if name in own:
                param = own[name]
                defaults[param.name] = _typed(value, several=param.multiple)
            elif name not in foreign:
                near = difflib.get_close_matches(name, own, n=1)
                hint = f"did you mean {near[0]}?" if near else "keys are flag names"
                fail(ConfigError(f"unknown key {key!r} in {path}", hint=hint, param="config"))
    context.default_map = defaults
    return path


def _typed(value: Any, *, several: bool) -> Any:
    if several and not isinstance(value, list):
        return [str(value)]
    return [str(one) for one in value] if isinstance(value, list) else value if isinstance(value, bool) else str(value)


def _keys(command: Any) -> dict[str, Any]:
    """Options of a command by every name that a key may have: its own, and its long flags without dashes."""
    keys: dict[str, Any] = {}
    for param in command.params:
        if param.param_type_name == "option" and param.name not in ("config", "help"):
            keys |= {flag[2:].replace("-", "_"): param for flag in param.opts if flag.startswith("--")}
            keys[param.name] = param
    return keys


def _all_keys(command: Any) -> set[str]:
    found = set(_keys(command))
    for below in getattr(command, "commands", {}).values():
        found |= _all_keys(below)
    return found
