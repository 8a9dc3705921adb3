"""How much memory a call holds at its highest point, from torch's own record of every allocation."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(call: Callable[[], object]) -> int:
    """Allocated by ``call`` beyond what was there before, at the highest moment; CPU only."""
    return peak_and_kept_bytes(call)[0]


def peak_and_kept_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """The same, and how much of it is still there when ``call`` has returned its result."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = call()
    events = profile.profiler.kineto_results.events()
    changes = sorted(
        ((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda change: change[0]
    )
    total = peak = 0
    for _, size in changes:
        total += size
        peak = max(peak, total)
    del kept
    return peak, total
