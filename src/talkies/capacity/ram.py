"""The memory of this process, and how much of the host's is free. No torch: a server's process asks, too."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
_CGROUPS = (  # (limit, use) of the container, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def rss_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_ram_bytes() -> int | None:
    """What could still be allocated without swapping, within the container's limit; ``None`` where nobody says."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for limit, use in _CGROUPS:
        with suppress(OSError, ValueError):  # "max" is no number
            found.append(max(0, int(Path(limit).read_text()) - int(Path(use).read_text())))
    return min(found) if found else None


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
