"""The noise schedule that a checkpoint states (docs/model.md, Sigma schedules)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talkies.errors import CheckpointError
from talkies.h3.partitions import Parts

RELEASED_SHIFTS = {"video": 12.0, "audio": 3.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSchedule:
    """Shifts of the two sigma grids; ``base`` is the fixed ladder of a distilled release, before the shift."""

    video_shift: float
    audio_shift: float
    base: tuple[float, ...] | None = None


def read_schedule(parts: Parts) -> ReleaseSchedule:
    """From ``scheduler/`` and ``audio_scheduler/`` (port) or ``model_index.json`` (original), else the released one.

    Raises ``CheckpointError`` naming the file and the key.
    """
    shifts = dict(RELEASED_SHIFTS)
    base = None
    for index in parts.indexes:
        stated = index.get("_minimax_h3", {})
        shifts |= {k: v for k, v in stated.get("sigma_shift_scales", {}).items() if k in shifts}
        base = _ladder(stated, parts.root / "model_index.json") or base
    for name, folder in (("video", "scheduler"), ("audio", "audio_scheduler")):
        path = parts.root / folder / "scheduler_config.json"
        if path.is_file():
            shifts[name] = json.loads(path.read_text()).get("shift", shifts[name])
    for name, shift in shifts.items():
        if isinstance(shift, bool) or not isinstance(shift, int | float) or not shift > 0:
            raise CheckpointError(f"{parts.root}: the {name} shift is {shift!r}, not a positive number", param="shift")
    return ReleaseSchedule(video_shift=float(shifts["video"]), audio_shift=float(shifts["audio"]), base=base)


def _ladder(stated: Mapping[str, Any], path: Path) -> tuple[float, ...] | None:
    if "base_schedule" in stated:
        ladder = stated["base_schedule"]
    elif "dmd_denoising_steps" in stated:  # positions in thousandths, without the terminal 0
        ladder = [step / 1000 for step in stated["dmd_denoising_steps"]] + [0.0]
    else:
        return None
    falls = isinstance(ladder, list) and len(ladder) > 1 and all(a > b for a, b in itertools.pairwise(ladder))
    if not falls or ladder[-1] != 0.0 or ladder[0] > 1.0:
        raise CheckpointError(f"{path}: the base schedule {ladder} does not fall strictly from at most 1 to 0")
    return tuple(float(x) for x in ladder)
