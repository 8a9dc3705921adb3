"""Exceptions of one job -> the error that its client sees."""

from __future__ import annotations

import errno
import logging
import re
from typing import Any

from talkies.errors import OutOfMemory, TalkiesError

log = logging.getLogger(__name__)
# torch reports a full host as a plain RuntimeError, and so does oneDNN, which does not even say what it lacked.
_FULL_HOST = re.compile(r"DefaultCPUAllocator|Cannot allocate memory|could not create a primitive$", re.MULTILINE)


def as_talkies(error: BaseException) -> TalkiesError:
    """The same failure by one of our names. What we did not foresee becomes ``internal_error``, logged in full."""
    if isinstance(error, TalkiesError):
        return error
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if out_of_memory(error):
        return OutOfMemory(f"out of memory: {text}", hint="ask for a shorter or smaller clip")
    log.error("unforeseen failure", exc_info=error)
    return TalkiesError(f"internal error: {type(error).__name__}: {text}", hint="the server's log has the details")


def out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host was full. By name, since the server maps errors too and does not import torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _host_allocator(error)


def error_dict(error: TalkiesError) -> dict[str, Any]:
    """What ``JobEvent.error`` carries."""
    return {"code": error.code, "message": str(error), "param": error.param, "status": error.http_status}


def _host_allocator(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _FULL_HOST.search(str(error)) is not None
