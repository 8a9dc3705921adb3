"""How much host memory is free. No torch: a server's process asks, too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUPS = (  # (limit, use) of the container, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


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
