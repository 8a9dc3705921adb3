"""The error tree. Each error says what is wrong, what is allowed (``message``) and what to do (``hint``).

TalkiesError                       http_status  exit_code  code
├── InvalidRequest                 400          2          invalid_request     a field of a request
│   ├── MediaError                 400          2          invalid_media       a file or URL the user gave
│   ├── TooLarge                   413          2          too_large           body or upload over its limit
│   └── UnsupportedTask            400          2          unsupported_task    partition not loaded
├── ConfigError                    500          2          invalid_config      a flag, an environment variable
├── CheckpointError                500          2          invalid_checkpoint  weights missing, unknown, misshapen
├── Busy                           429          1          queue_full
├── NotReady                       503          1          not_ready
├── NumericsError                  500          1          non_finite          a stage produced NaN or Inf
├── OutOfMemory                    500          1          out_of_memory
├── OutputError                    500          1          output_failed       disk full, file-size limit
├── WorkerDied                     500          1          worker_died
│   └── WorkerHung                 500          1          worker_hung         alive, but silent for too long
└── Cancelled                      499          130        cancelled
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

E = TypeVar("E", bound="TalkiesError")


class TalkiesError(Exception):
    """Base of every error that talkies raises on purpose.

    ``param`` is the field, flag or file that the user can change; ``hint`` is the way out.
    """

    http_status = 500
    exit_code = 1
    code = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields would be lost by Exception's default pickling; errors cross process borders.
        return (_rebuild, (type(self), self.message, self.hint, self.param))


def _rebuild(cls: type[TalkiesError], message: str, hint: str | None, param: str | None) -> TalkiesError:
    return cls(message, hint=hint, param=param)


def respelled(text: str, names: Mapping[str, str], joint: str = "=") -> str:
    """``text`` with other names for arguments: ``name=value`` becomes the new name, ``joint`` and the value; where no
    value follows, only names with an underscore are replaced, since the others are words of English, too."""
    for old, new in names.items():
        text = re.sub(rf"(?<![\w.\-]){re.escape(old)}=", new + joint, text)
        if "_" in old:
            text = re.sub(rf"(?<![\w.\-]){re.escape(old)}\b", new, text)
    return text


def retold(error: E, names: Mapping[str, str], joint: str = "=") -> E:
    """The same error in the words of whoever asked. Errors name arguments of Python; a flag of the command line and a
    field of HTTP have other names."""
    error.message = respelled(error.message, names, joint)
    error.hint = None if error.hint is None else respelled(error.hint, names, joint)
    error.param = names.get(error.param or "", error.param)
    error.args = (error.message,)
    return error


class InvalidRequest(TalkiesError):
    http_status = 400
    exit_code = 2
    code = "invalid_request"


class MediaError(InvalidRequest):
    code = "invalid_media"


class TooLarge(InvalidRequest):
    http_status = 413
    code = "too_large"


class UnsupportedTask(InvalidRequest):
    code = "unsupported_task"


class ConfigError(TalkiesError):
    exit_code = 2
    code = "invalid_config"


class CheckpointError(TalkiesError):
    exit_code = 2
    code = "invalid_checkpoint"


class Busy(TalkiesError):
    http_status = 429
    code = "queue_full"


class NotReady(TalkiesError):
    http_status = 503
    code = "not_ready"


class NumericsError(TalkiesError):
    code = "non_finite"


class OutOfMemory(TalkiesError):
    code = "out_of_memory"


class OutputError(TalkiesError):
    code = "output_failed"


class WorkerDied(TalkiesError):
    code = "worker_died"


class WorkerHung(WorkerDied):
    code = "worker_hung"


class Cancelled(TalkiesError):
    http_status = 499
    exit_code = 130
    code = "cancelled"
