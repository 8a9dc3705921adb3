"""Log lines with the job they belong to: stdlib loggers everywhere, rendered by structlog at the top."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any, TextIO

import structlog


class _Stderr(logging.StreamHandler):
    """Writes to what ``sys.stderr`` is now: while a progress bar is shown, that puts lines above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr


def configure(*, level: str, as_json: bool) -> None:
    """One handler on stderr for everything, uvicorn included."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    plain = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else plain
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.writes_json = as_json  # type: ignore[attr-defined]
    logging.captureWarnings(True)
    if as_json:
        _log_what_python_prints()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _log_what_python_prints() -> None:
    """Tracebacks that end a thread or the process: on stderr they would be lines that are no JSON."""
    log = logging.getLogger("talkies")

    def of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("the process ends by an error", exc_info=(kind, error, trace))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = "" if args.thread is None else args.thread.name
            log.critical("thread %s ends by an error", name, exc_info=args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        log.error("ignored: %s", args.err_msg or args.object, exc_info=args.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = of_process, of_thread, unraisable
