"""``step_caches.json``: the tiers of ``quality`` of one checkpoint, as ``talkies calibrate`` writes them.

    {"format": 1, "version": 1, "checkpoint": "<hash>",
     "tiers": {"high": {"t2va": [{"policy": "forecast", "parameters": {"runs": [0, 1, 3, ...]}, "skipped": 0.5,
                                  "num_forwards": 49, "video_shift": 12.0, "audio_shift": 3.0}]}}}

It lies in the checkpoint's folder, or anywhere and is named by ``--step-caches``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talkies.condition import Task
from talkies.errors import CheckpointError
from talkies.files.json_files import read_json
from talkies.quality import TIERS, CachePolicy, Tiers

FILE_NAME = "step_caches.json"
FORMAT = 1
_NUMBERS = ("skipped", "num_forwards", "video_shift", "audio_shift")


def read_tiers(root: Path, file: Path | None = None) -> Tiers:
    """Of the checkpoint in ``root``: from ``file``, else its own, else none. Raises ``CheckpointError``."""
    path = file or root / FILE_NAME
    if file is None and not path.is_file():
        return Tiers()
    if not path.is_file():
        raise CheckpointError(f"no step caches at {path}", hint="make them: talkies calibrate", param="step_caches")
    found = read_json(path)
    if found.get("format") != FORMAT:
        raise _wrong(path, f"format is {found.get('format')!r}", f"this version reads {FORMAT}")
    tiers, version, checkpoint = found.get("tiers"), found.get("version"), found.get("checkpoint")
    if not isinstance(version, int) or not isinstance(checkpoint, str) or not checkpoint:
        raise _wrong(path, "version or checkpoint is missing", "make it anew: talkies calibrate")
    if not isinstance(tiers, dict) or not set(tiers) <= set(TIERS):
        raise _wrong(path, "tiers is no table of tiers", "known: " + ", ".join(TIERS))
    policies = {tier: _of_tier(path, tier, tasks) for tier, tasks in tiers.items()}
    return Tiers(version=version, checkpoint=checkpoint, policies=policies)


def _of_tier(path: Path, tier: str, tasks: Any) -> dict[str, tuple[CachePolicy, ...]]:
    if not isinstance(tasks, dict) or not set(tasks) <= set(Task):
        raise _wrong(path, f"{tier} is no table of tasks", "known: " + ", ".join(Task))
    for task, several in tasks.items():
        if not isinstance(several, list):
            raise _wrong(path, f"{tier}.{task} is no list", "a list of policies")
    return {task: tuple(_policy(path, f"{tier}.{task}", one) for one in several) for task, several in tasks.items()}


def _policy(path: Path, where: str, found: Any) -> CachePolicy:
    if not isinstance(found, dict) or not isinstance(found.get("policy"), str):
        raise _wrong(path, f"{where}: a policy is missing", "such as forecast")
    unknown = sorted(set(found) - {"policy", "parameters", *_NUMBERS})
    if unknown:
        raise _wrong(
            path, f"{where}: unknown keys {', '.join(unknown)}", "known: policy, parameters, " + ", ".join(_NUMBERS)
        )
    parameters = found.get("parameters", {})
    numbers = {name: found[name] for name in _NUMBERS if found.get(name) is not None}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong(path, f"{where}: {name} is {value!r}", "a number")
    if not isinstance(parameters, dict) or not 0 <= numbers.get("skipped", 0) < 1:
        raise _wrong(path, f"{where}: parameters or skipped is wrong", "an object, and a share under 1")
    return CachePolicy(name=found["policy"], parameters=parameters, **numbers)


def _wrong(path: Path, what: str, hint: str) -> CheckpointError:
    return CheckpointError(f"{path}: {what}", hint=hint, param="step_caches")


def write_tiers(path: Path, tiers: Tiers) -> None:
    """Written aside and renamed. Raises ``OSError``."""
    table = {
        "format": FORMAT,
        "version": tiers.version,
        "checkpoint": tiers.checkpoint,
        "tiers": {
            tier: {task: [_written(policy) for policy in several] for task, several in tasks.items()}
            for tier, tasks in tiers.policies.items()
        },
    }
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(aside, path)


def _written(policy: CachePolicy) -> Mapping[str, Any]:
    numbers = {name: getattr(policy, name) for name in _NUMBERS}
    return {
        "policy": policy.name,
        "parameters": dict(policy.parameters),
        **{name: value for name, value in numbers.items() if value is not None},
    }
