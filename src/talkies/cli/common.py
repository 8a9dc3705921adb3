"""What every command shares: one clear line for an error, and the exit codes.

0 done, 1 ours or the machine's (disk full, worker died), 2 the user's (field, flag, file), 130 Ctrl-C, 143 SIGTERM,
129 a closed terminal.
"""

from __future__ import annotations

import functools
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from talkies.errors import ConfigError, TalkiesError

LOG_LEVELS = ("debug", "info", "warning", "error")

P = ParamSpec("P")
R = TypeVar("R")


def fail(error: TalkiesError) -> NoReturn:
    where = f"{error.param}: " if error.param and error.param not in error.message else ""
    print(f"error: {where}{error}".replace("\n", " "), file=sys.stderr)
    raise typer.Exit(error.exit_code)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns the error tree into one line on stderr and its exit code; a bug of ours keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TalkiesError as error:
            fail(error)
        except KeyboardInterrupt as stop:
            print("cancelled", file=sys.stderr)
            raise typer.Exit(128 + (stop.signal if isinstance(stop, Stopped) else signal.SIGINT)) from None
        except BrokenPipeError:
            raise typer.Exit(1) from None

    return wrapped


class Stopped(KeyboardInterrupt):
    """Another signal that ends a command."""

    def __init__(self, signal_: int) -> None:
        self.signal = signal_


@contextmanager
def cleans_up() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does: what is half-written is removed."""

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    heard = [
        n for n in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if n and signal.getsignal(n) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def configure_logs(level: str, *, as_json: bool = False) -> None:
    """Log lines of this process on stderr. Raises ``ConfigError``."""
    if level not in LOG_LEVELS:
        raise ConfigError(f"log_level={level!r} is unknown", hint="debug, info, warning or error", param="log_level")
    from talkies.server import logs

    logs.configure(level=level, as_json=as_json)


def parse_bytes(name: str, text: str | None) -> int | None:
    """``12GiB``, ``12G``, ``800MiB`` or plain bytes. Raises ``ConfigError``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", text.strip(), re.IGNORECASE)
    value = 0 if match is None else int(float(match[1]) * 1024 ** " KMGT".index((match[2] or " ").upper()))
    if value <= 0:
        raise ConfigError(f"{name}={text!r} is not a size", hint="for example 12GiB", param=name)
    return value


def plain(text: object) -> str:
    """One line for a terminal: a prompt, a name or a file's metadata may hold newlines and escape sequences."""
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "" for ch in str(text))


def print_json(data: Any) -> None:
    """One object on one line: the last line of stdout is what scripts parse."""
    print(json.dumps(data, ensure_ascii=False, allow_nan=False), flush=True)
