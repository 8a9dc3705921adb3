"""The flags of a command that are options of the engine, made from their table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import typer

from talkies.cli.config_file import read_config
from talkies.engine.option_kinds import Option, either, show_options
from talkies.engine.options import OPTIONS

R = TypeVar("R")

METAVARS = {"words": "NAMES", "count": "N", "size": "SIZE", "named_paths": "FILE"}


def takes_engine_options(
    *names: str, leaving: Collection[str] = (), without_peers: Collection[str] = ()
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Gives a command a flag for each option (of ``names``, or of the whole table but ``leaving``), and ``--config``.

    The command takes what was stated as ``engine``, a dictionary by name; what nobody stated is not in it. Values are
    as they were typed: ``EngineConfig.of`` reads them. ``without_peers``: peers' spellings that the command reads
    itself. The order of words is flag, environment, file, default.
    """
    rows = [OPTIONS[name] for name in names] if names else [o for o in OPTIONS.values() if o.name not in leaving]

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def with_options(**given: Any) -> R:
            del given["config"]
            said = {row.name: given.pop(row.name) for row in rows}
            return command(**given, engine={name: value for name, value in said.items() if value not in (None, [])})

        def shown(row: Option) -> inspect.Parameter:
            return _parameter(row, row.name in without_peers)

        parameters = show_options(with_options, own, shown, rows, [_config()])
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate


def _parameter(row: Option, without_peers: bool) -> inspect.Parameter:
    spellings = [row.flag, *(() if without_peers else row.peers)]
    several = row.kind in ("words", "named_paths")
    flag = typer.Option(
        [] if several else None,
        *spellings,
        envvar=list(row.environment),
        metavar=METAVARS.get(row.kind, "WORD"),
        help=described(row),
        rich_help_panel=row.panel,
        show_default=_shown(row.default),
    )
    annotation: Any = list[str] if several else str | None
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=annotation)


def described(row: Option) -> str:
    """The help text of an option, with its limits and what peers call it."""
    text = row.help
    if row.high is not None:
        text += f" {row.low} to {row.high}."
    peers = tuple(name for name in row.peers if name.startswith("--"))
    return f"{text} Also {either(peers)}." if peers else text


def _shown(default: Any) -> str | bool:
    return False if default in (None, ()) else ",".join(default) if isinstance(default, tuple) else str(default)


def _config() -> inspect.Parameter:
    flag = typer.Option(
        None,
        envvar="TALKIES_CONFIG",
        callback=read_config,
        is_eager=True,
        metavar="FILE",
        help="A TOML file whose keys are names of options. A table [serve] or [generate] is for that command "
        "alone. By default no file is read.",
        rich_help_panel="Advanced",
    )
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=Path | None)
