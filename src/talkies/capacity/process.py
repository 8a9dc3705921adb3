"""The memory of this process. No torch."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096


def rss_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back() -> None:
    """Collects garbage and hands freed memory to the system: glibc keeps it in its arenas, and a server that is idle
    should not look like one that is busy."""
    gc.collect()
    libc: Any = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> Any:
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        _ = libc.malloc_trim  # absent outside glibc
        return libc
    return None
