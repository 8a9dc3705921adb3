"""What every command shares: one clear line for an error, and the exit codes.

0 done, 1 ours or the machine's (disk full, worker died), 2 the user's (field, flag, file), 130 Ctrl-C, 143 SIGTERM,
129 a closed terminal.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from talkies.cli.flag_names import flag_names
from talkies.errors import ConfigError, TalkiesError, retold

LOG_LEVELS = ("debug", "info", "warning", "error")

P = ParamSpec("P")
R = TypeVar("R")


class Refused(ConfigError):
    """Several things are wrong with one line."""

    def __init__(self, errors: Sequence[TalkiesError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = tuple(errors)


class Refusals:
    """What is wrong with a line, collected, so that its writer hears all of it at once."""

    def __init__(self) -> None:
        self.errors: list[TalkiesError] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The block goes on being wrong until the end of the line."""
        try:
            yield
        except TalkiesError as error:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raises the one that is kept, or ``Refused`` with all of them."""
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else Refused(self.errors)


def told_in_flags(error: TalkiesError, command: Callable[..., Any]) -> TalkiesError:
    """The same error, with the flags of ``command`` in place of the arguments that they became."""
    for one in error.errors if isinstance(error, Refused) else (error,):
        retold(one, flag_names(command), " ")
        if one.param in ("width", "height"):
            one.param = "--size"  # which both come of
    return error


def say_error(error: TalkiesError, before: str = "") -> None:
    """The one line of an error; ``before`` says what it is about."""
    where = f"{error.param}: " if error.param and error.param not in error.message else ""
    say(f"error: {before}{where}{error}".replace("\n", " "), logging.ERROR)


def fail(error: TalkiesError) -> NoReturn:
    for one in error.errors if isinstance(error, Refused) else (error,):
        say_error(one)
    raise typer.Exit(error.exit_code)


def say(line: str, level: int = logging.INFO) -> None:
    """A line for whoever started the process, on stderr whatever the log's level; JSON where the log is."""
    handler = next((h for h in logging.getLogger().handlers if getattr(h, "writes_json", False)), None)
    if handler is None:
        print(line, file=sys.stderr, flush=True)
    else:
        handler.handle(logging.LogRecord("talkies.cli", level, "", 0, line, None, None))


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns the error tree into one line on stderr and its exit code, under ``--json`` also into an object on stdout; a
    bug of ours keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TalkiesError as error:
            error = told_in_flags(error, command)
            if kwargs.get("json") is True:
                print_json({"error": as_json(error)})
            fail(error)
        except KeyboardInterrupt as stop:
            say("cancelled")
            raise typer.Exit(128 + (stop.signal if isinstance(stop, Stopped) else signal.SIGINT)) from None
        except BrokenPipeError:
            raise typer.Exit(1) from None

    return wrapped


def as_json(error: TalkiesError) -> dict[str, Any]:
    """What a script reads in place of the object that it asked for; the line on stderr says the same."""
    return {"message": error.message, "hint": error.hint, "param": error.param, "code": error.code}


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


def check_log_level(level: str) -> None:
    """Raises ``ConfigError``."""
    if level not in LOG_LEVELS:
        raise ConfigError(f"log_level={level!r} is unknown", hint="debug, info, warning or error", param="log_level")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises ``ConfigError``, also for a value that is no number at all."""
    if not low <= value <= high:
        raise ConfigError(f"{name}={value} is outside {low:g}..{high:g}", hint="choose a value inside", param=name)


def configure_logs(level: str, *, as_json: bool = False) -> None:
    """Log lines of this process on stderr. Raises ``ConfigError``."""
    check_log_level(level)
    from talkies.server import logs

    logs.configure(level=level, as_json=as_json)


def plain(text: object) -> str:
    """One line for a terminal: a prompt, a name or a file's metadata may hold newlines and escape sequences."""
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "" for ch in str(text))


def print_json(data: Any) -> None:
    """One object on one line: the last line of stdout is what scripts parse.

    Where stdout's encoding lacks a character, all that is not ASCII is escaped: the same JSON in other bytes.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, allow_nan=False)
    print(text, flush=True)


def print_in_any_encoding() -> None:
    """From now on a character that the encoding of stdout or stderr lacks is printed as ``?`` and ends no command.

    A Latin-1 or KOI8-R terminal has no ellipsis for a help page and no Chinese for a prompt.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
