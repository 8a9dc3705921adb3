"""What an adapter's file says of itself besides its tensors, and what lies beside it as JSON. No torch.

Read, from the weakest word to the strongest: the published name of a file (the LightX2V Turbo family records its steps
nowhere else), the metadata in its header, ``adapter_config.json`` (PEFT), ``adapter_manifest.json`` and
``fastvideo_inference.json`` (FastVideo), and a sidecar of the operator: ``film.json`` beside ``film.safetensors``.
docs/adapters.md has the keys.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talkies.adapters.published import known_release
from talkies.errors import CheckpointError
from talkies.few_steps import Ladder
from talkies.files.json_files import read_json
from talkies.values import MAX_SIGMAS, MIN_SIGMAS

BESIDE = ("adapter_config.json", "adapter_manifest.json", "fastvideo_inference.json")
PARTITION_OF_TASKS = ("t2va", "fl2va", "ref2va")
# Ours -> the names that files and sidecars have for it; the first is ours.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "alpha": ("alpha", "lora_alpha"),
    "tasks": ("tasks", "task"),
    "qkv_layout": ("qkv_layout",),
    "base_schedule": ("base_schedule",),
    "dmd_denoising_steps": ("dmd_denoising_steps", "base_timesteps"),
    "num_forwards": ("num_forwards", "transformer_forwards"),
    "num_inference_steps": ("num_inference_steps",),
    "flow_shift": ("flow_shift", "video_shift", "video_scheduler_shift"),
    "audio_flow_shift": ("audio_flow_shift", "audio_shift", "audio_scheduler_shift"),
    "guidance_scale": ("guidance_scale",),
    "use_rslora": ("use_rslora",),
    "use_dora": ("use_dora",),
    "alpha_pattern": ("alpha_pattern",),
}
_SIDECAR = {name for names in _NAMES.values() for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """``alpha`` counts where no tensor of the file says it; ``None``: as the rank, which is a scale of 1.

    ``tasks`` and ``ladder`` are ``None`` where nothing is said. ``notes`` are for the log."""

    alpha: float | None = None
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    tasks: tuple[str, ...] | None = None
    qkv_layout: str | None = None  # "grouped" (head by head) or "stacked"
    ladder: Ladder | None = None
    notes: tuple[str, ...] = ()

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """What the product of a pair counts. ``alpha``: as a tensor of the file says it."""
        if alpha is None:
            alpha = next((a for p, a in self.alpha_pattern.items() if re.fullmatch(rf"(.*\.)?{p}", module)), self.alpha)
        if alpha is None:
            return 1.0
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def read_contract(file: Path, metadata: Mapping[str, str]) -> Contract:
    """Raises ``CheckpointError`` naming the file and the key that is wrong."""
    release, notes = known_release(file.name, metadata)
    said: dict[str, Any] = {**release, **_of_metadata(metadata, file)}
    for name in BESIDE:
        path = file.parent / name
        if path.is_file():
            said |= _named(_flat(read_json(path)))
    sidecar = file.with_suffix(".json")
    if sidecar.is_file():
        own = read_json(sidecar)
        unknown = sorted(set(own) - _SIDECAR)
        if unknown:
            raise _wrong(sidecar, unknown[0], own[unknown[0]], "one of " + ", ".join(n[0] for n in _NAMES.values()))
        # What the operator says of steps stands instead of all that others say of them.
        if _named(own).keys() & {"base_schedule", "dmd_denoising_steps", "num_forwards", "num_inference_steps"}:
            for key in ("base_schedule", "dmd_denoising_steps", "num_forwards", "num_inference_steps"):
                said.pop(key, None)
        said |= _named(own)
    return _contract(said, sidecar if sidecar.is_file() else file, notes)


def _of_metadata(metadata: Mapping[str, str], file: Path) -> dict[str, Any]:
    """Safetensors metadata is text: numbers and lists are written out, a list as JSON or between commas."""
    said: dict[str, Any] = {}
    packed = metadata.get("lora_adapter_metadata")  # diffusers' own: PEFT's config, each key behind its component
    if packed is not None:
        try:
            of_peft = {key.rpartition(".")[2]: value for key, value in json.loads(packed).items()}
        except (ValueError, AttributeError):
            raise _wrong(file, "lora_adapter_metadata", packed[:60], "a JSON object") from None
        said |= _named(of_peft)
    for key, text in _named(metadata).items():
        try:
            said[key] = json.loads(text)
        except ValueError:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            said[key] = parts if key in ("base_schedule", "dmd_denoising_steps", "tasks") else text
    return said


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"sampling": {"base_timesteps": ..}}`` -> its leaves by their own names."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= _flat(value) if isinstance(value, Mapping) and key != "alpha_pattern" else {key: value}
    return out


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        ours: values[name] for ours, names in _NAMES.items() for name in names if values.get(name) not in (None, "")
    }


def _contract(said: Mapping[str, Any], where: Path, notes: tuple[str, ...]) -> Contract:
    if said.get("use_dora"):
        raise CheckpointError(f"{where}: a DoRA is not a sum of matrices", hint="merge it with its trainer")
    guidance = _number(said, "guidance_scale", where)
    if guidance not in (None, 0.0, 1.0):
        raise CheckpointError(
            f"{where}: guidance_scale is {guidance:g}, and every request runs without guidance",
            hint="use an adapter that was distilled with guidance",
            param="guidance_scale",
        )
    tasks = said.get("tasks")
    if isinstance(tasks, str):
        tasks = [part.strip() for part in tasks.split(",")]
    if tasks is not None and (not isinstance(tasks, list) or not tasks or set(tasks) - set(PARTITION_OF_TASKS)):
        raise _wrong(where, "tasks", tasks, "a list of t2va, fl2va and ref2va")
    layout = said.get("qkv_layout")
    if layout not in (None, "grouped", "stacked"):
        raise _wrong(where, "qkv_layout", layout, "grouped or stacked")
    alpha = _number(said, "alpha", where)
    if alpha is not None and not alpha > 0:
        raise _wrong(where, "alpha", alpha, "a positive number")
    pattern = said.get("alpha_pattern") or {}
    if not isinstance(pattern, Mapping) or not all(isinstance(a, int | float) for a in pattern.values()):
        raise _wrong(where, "alpha_pattern", pattern, "an object of numbers")
    return Contract(
        alpha=alpha,
        alpha_pattern={str(key): float(value) for key, value in pattern.items()},
        use_rslora=bool(said.get("use_rslora")),
        tasks=None if tasks is None else tuple(task for task in PARTITION_OF_TASKS if task in tasks),
        qkv_layout=layout,
        ladder=_ladder(said, where),
        notes=notes,
    )


def _ladder(said: Mapping[str, Any], where: Path) -> Ladder | None:
    forwards, points = _count(said, "num_forwards", where), _count(said, "num_inference_steps", where)
    base: tuple[float, ...] | None = None
    if "base_schedule" in said:
        base = _positions(said["base_schedule"], "base_schedule", where)
    elif "dmd_denoising_steps" in said:  # positions in thousandths, without the terminal 0
        steps = _positions(said["dmd_denoising_steps"], "dmd_denoising_steps", where)
        base = (*(step / 1000 for step in steps), 0.0)
    if base is not None:
        falls = len(base) > 1 and all(a > b for a, b in itertools.pairwise(base))
        if not falls or base[0] > 1.0 or base[-1] != 0.0 or not MIN_SIGMAS <= len(base) <= MAX_SIGMAS:
            raise _wrong(where, "base_schedule", list(base), "positions that fall strictly from at most 1 to 0")
        if forwards not in (None, len(base) - 1):
            raise _wrong(where, "num_forwards", forwards, f"{len(base) - 1}, as its positions say")
        forwards = len(base) - 1
    elif forwards is None:
        forwards = None if points is None else points - 1
    if forwards is None:
        return None
    if not MIN_SIGMAS <= forwards + 1 <= MAX_SIGMAS:
        raise _wrong(where, "num_forwards", forwards, f"{MIN_SIGMAS - 1}..{MAX_SIGMAS - 1}")
    shifts = [_number(said, name, where) for name in ("flow_shift", "audio_flow_shift")]
    if any(shift is not None and not shift > 0 for shift in shifts):
        raise _wrong(where, "flow_shift", shifts, "positive numbers")
    return Ladder(num_forwards=forwards, base=base, video_shift=shifts[0], audio_shift=shifts[1])


def _positions(value: Any, name: str, where: Path) -> tuple[float, ...]:
    try:
        found = tuple(float(one) for one in value)
    except (TypeError, ValueError):
        raise _wrong(where, name, value, "a list of numbers") from None
    if not all(map(math.isfinite, found)):
        raise _wrong(where, name, value, "a list of finite numbers")
    return found


def _number(said: Mapping[str, Any], name: str, where: Path) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(where, name, value, "a finite number")
    return float(value)


def _count(said: Mapping[str, Any], name: str, where: Path) -> int | None:
    value = _number(said, name, where)
    if value is not None and value != int(value):
        raise _wrong(where, name, value, "a whole number")
    return None if value is None else int(value)


def _wrong(where: Path, key: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(f"{where}: {key} is {str(value)[:80]!r}", hint=f"give {wanted}", param=key)
