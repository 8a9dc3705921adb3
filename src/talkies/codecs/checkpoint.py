"""A checkpoint folder: where its parts lie, and what it can make, without reading a weight.

Two disk layouts. Port: ``vae/ audio_vae/ text_encoder/ tokenizer/ processor/ transformer/ transformer_ref/``.
Original: ``FL2VA/`` and ``Ref2VA/``, each with ``video_vae/ audio_vae/ text_encoder/ tokenizer/ processor/
transformer/`` and a ``model_index.json`` whose ``_minimax_h3`` states the partition; one of the two alone also loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from talkies.codecs.audio import AudioVAEConfig
from talkies.codecs.patches import PatchConfig
from talkies.codecs.reading import read_json
from talkies.codecs.video_config import VideoVAEConfig
from talkies.errors import CheckpointError, ConfigError
from talkies.geometry import NAMED_RATIOS, Limits
from talkies.request import parse_ratio

PARTITION_TASKS: Mapping[str, tuple[str, ...]] = {"fl2va": ("t2va", "fl2va"), "ref2va": ("ref2va",)}
ORIGINAL_FOLDERS: Mapping[str, str] = {"FL2VA": "fl2va", "Ref2VA": "ref2va"}
FPS = 24  # of the model; no config states it
# Limits that talkies.json may set, field by field; the other keys it may hold are read below.
SETTINGS_FIELDS = (
    "default_num_frames",
    "default_num_sigmas",
    "canvas_short_edge",
    "canvas_max_pixels",
    "reference_image_short_edge",
)
SETTINGS_OTHERS = (
    "min_num_frames",
    "max_num_frames",
    "canvas_multiple",
    "default_aspect",
    "named_ratios",
    "partition",
    "tasks",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Folders of one checkpoint. ``transformers`` maps a partition (fl2va, ref2va) to its DiT folder."""

    root: Path
    layout: str  # "port" or "original"
    transformers: Mapping[str, Path]
    video_vae: Path
    audio_vae: Path
    text_encoder: Path
    tokenizer: Path
    processor: Path | None  # absent: the released pixel bounds
    indexes: tuple[Mapping[str, Any], ...]  # model_index.json of each partition found

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that the partitions found here serve, in canonical order."""
        stated = {
            task
            for index in self.indexes
            for task in index.get("_minimax_h3", {}).get("tasks", ())  # only the original layout states them
        }
        served = {task for partition in self.transformers for task in PARTITION_TASKS[partition]}
        wanted = stated & served if stated else served
        return tuple(task for tasks in PARTITION_TASKS.values() for task in tasks if task in wanted)


def find_parts(folder: Path | str) -> Parts:
    """Locates every part; raises ``CheckpointError`` naming those that are missing."""
    root = Path(folder)
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a folder", hint="give the folder of a checkpoint", param="model")
    partitions = {name: root / sub for sub, name in ORIGINAL_FOLDERS.items() if (root / sub).is_dir()}
    if partitions:
        return _original(root, partitions)
    if _video_vae(root).name != "vae":
        stated = _index(root).get("_minimax_h3", {}).get("partition", "fl2va")
        if stated not in PARTITION_TASKS:
            raise CheckpointError(f"{root / 'model_index.json'}: unknown partition {stated!r}", param=str(root))
        return _original(root, {str(stated): root})
    transformers = {
        name: root / sub
        for name, sub in (("fl2va", "transformer"), ("ref2va", "transformer_ref"))
        if (root / sub).is_dir()
    }
    return _checked(root, "port", root, transformers, (_index(root),))


def narrowed(parts: Parts, limits: Limits, task_type: str) -> tuple[Parts, Limits]:
    """What is left when one partition is served. Raises ``ConfigError`` when the checkpoint does not have it."""
    if task_type == "combined":
        return parts, limits
    tasks = tuple(task for task in limits.tasks if task in PARTITION_TASKS[task_type])
    if task_type not in parts.transformers or not tasks:
        found = f"{', '.join(parts.transformers)} ({', '.join(limits.tasks)})"
        raise ConfigError(
            f"task_type={task_type}, but the checkpoint has {found}",
            hint="use --task-type combined",
            param="task_type",
        )
    transformers = {task_type: parts.transformers[task_type]}
    return replace(parts, transformers=transformers), replace(limits, tasks=tasks)


def read_limits(folder: Path | str) -> Limits:
    """What the checkpoint in ``folder`` can make, from its configs alone; its ``talkies.json`` has the last word.

    Raises ``CheckpointError`` for a missing part or configs that contradict each other.
    """
    return limits_of(find_parts(folder))


def limits_of(parts: Parts) -> Limits:
    """:func:`read_limits` for parts already found."""
    video = VideoVAEConfig.read(parts.video_vae)
    audio = AudioVAEConfig.read(parts.audio_vae)
    patch_size = _patch_size(parts, video.latent_channels, audio.latent_channels)
    temporal = video.temporal
    patches = PatchConfig.load(parts.processor)
    values: dict[str, Any] = {
        "spatial_factor": video.spatial_factor,
        "patch_size": patch_size,
        "clip_frames": temporal.clip_frames,
        "tail_frames": temporal.overlap_frames,
        "clip_latents": temporal.clip_latents,
        "tail_latents": temporal.overlap_latents,
        "sample_rate_hz": audio.sample_rate_hz,
        "audio_hop": audio.hop,
        "vision_multiple": patches.multiple,
        "tasks": parts.tasks,
    }
    modular = parts.root / "modular_model_index.json"
    if modular.is_file():
        index = read_json(modular)
        values |= {key: index[key] for key in SETTINGS_FIELDS if isinstance(index.get(key), int)}
    settings = parts.root / "talkies.json"
    if settings.is_file():
        values |= _settings(read_json(settings), settings, parts, video.spatial_factor * patch_size)
    return Limits(**values)


def _settings(found: Mapping[str, Any], path: Path, parts: Parts, canvas_multiple: int) -> dict[str, Any]:
    """Fields of ``Limits`` that ``talkies.json`` sets; unknown keys are refused, never dropped."""
    unknown = sorted(set(found) - set(SETTINGS_FIELDS) - set(SETTINGS_OTHERS))
    if unknown:
        known = ", ".join((*SETTINGS_FIELDS, *SETTINGS_OTHERS))
        raise CheckpointError(f"{path}: unknown keys {', '.join(unknown)}", hint=f"known: {known}", param=str(path))
    values: dict[str, Any] = {}
    for key in (*SETTINGS_FIELDS, "min_num_frames", "max_num_frames", "canvas_multiple"):
        value = found.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{path}: {key} is {value!r}, not a positive integer", param=str(path))
        if key in found and key in SETTINGS_FIELDS:
            values[key] = value
    if "default_aspect" in found:
        if not isinstance(found["default_aspect"], str):
            raise CheckpointError(f"{path}: default_aspect is {found['default_aspect']!r}, not a text", param=str(path))
        parse_ratio(found["default_aspect"])
        values["default_aspect"] = found["default_aspect"]
    if "default_num_frames" in found:
        values["default_num_frames_ref2va"] = found["default_num_frames"]
    if "min_num_frames" in found:
        values["min_seconds"] = found["min_num_frames"] / FPS
    if "max_num_frames" in found:
        values |= {"max_frames": found["max_num_frames"], "max_seconds": found["max_num_frames"] / FPS}
    if found.get("canvas_multiple", canvas_multiple) != canvas_multiple:
        raise CheckpointError(
            f"{path}: canvas_multiple is {found['canvas_multiple']}, the configs give {canvas_multiple}",
            param=str(path),
        )
    if "named_ratios" in found:
        # Known names keep their nominal ratio; the canvas rule finds the pixels. Others bring a canvas as ratio.
        values["named_ratios"] = {
            name: NAMED_RATIOS.get(name, (int(size[0]), int(size[1]))) for name, size in found["named_ratios"].items()
        }
    if "tasks" in found:
        absent = [task for task in found["tasks"] if task not in parts.tasks]
        if absent:
            raise CheckpointError(
                f"{path}: tasks {', '.join(absent)} have no weights here",
                hint="found: " + ", ".join(parts.tasks),
                param=str(path),
            )
        values["tasks"] = tuple(found["tasks"])
    return values


def _patch_size(parts: Parts, video_channels: int, audio_channels: int) -> int:
    """The DiT's spatial patch; its channel counts must be the VAEs'."""
    sizes = set()
    for folder in parts.transformers.values():
        path = folder / "config.json"
        config = read_json(path)
        patch = config.get("patch_size", (1, 2, 2))
        if not isinstance(patch, list | tuple) or len(patch) != 3 or patch[0] != 1 or patch[1] != patch[2]:
            raise CheckpointError(f"{path}: patch_size {patch} is not [1, p, p]", param=str(path))
        sizes.add(int(patch[1]))
        for keys, channels, vae in (
            (("in_channels", "latents_dim"), video_channels, "video VAE"),
            (("audio_in_channels", "audio_latents_dim"), audio_channels, "audio VAE"),
        ):
            stated = next((config[key] for key in keys if key in config), channels)
            if stated != channels:
                raise CheckpointError(
                    f"{path}: {keys[0]} is {stated}, the {vae} has {channels} latent channels", param=str(path)
                )
    if len(sizes) != 1:
        raise CheckpointError(f"{parts.root}: the partitions disagree on patch_size: {sorted(sizes)}", param="model")
    return sizes.pop()


def _original(root: Path, partitions: Mapping[str, Path]) -> Parts:
    """Shared parts come from the first partition; the release stores the same files in both."""
    for name, folder in partitions.items():
        stated = _index(folder).get("_minimax_h3", {}).get("partition", name)
        if stated != name:
            raise CheckpointError(
                f"{folder}: model_index.json says partition {stated!r}, not {name!r}", param=str(folder)
            )
    transformers = {name: folder / "transformer" for name, folder in partitions.items()}
    indexes = tuple(_index(folder) for folder in partitions.values())
    return _checked(root, "original", next(iter(partitions.values())), transformers, indexes)


def _checked(
    root: Path, layout: str, shared: Path, transformers: Mapping[str, Path], indexes: tuple[Mapping[str, Any], ...]
) -> Parts:
    video_vae = _video_vae(shared)
    needed = {
        video_vae.name: video_vae,
        **{name: shared / name for name in ("audio_vae", "text_encoder", "tokenizer")},
        **{str(folder.relative_to(root)): folder for folder in transformers.values()},
    }
    missing = [name for name, folder in needed.items() if not folder.is_dir()]
    if not transformers:
        missing.append("transformer or transformer_ref")
    if missing:
        raise CheckpointError(
            f"{root} lacks {', '.join(missing)}", hint="finish the download, or give another folder", param="model"
        )
    processor = shared / "processor"
    return Parts(
        root=root,
        layout=layout,
        transformers=dict(transformers),
        video_vae=video_vae,
        audio_vae=shared / "audio_vae",
        text_encoder=shared / "text_encoder",
        tokenizer=shared / "tokenizer",
        processor=processor if processor.is_dir() else None,
        indexes=indexes,
    )


def _video_vae(folder: Path) -> Path:
    """The video VAE's folder under any of its three names (the release's README writes ``visual_vae``)."""
    return next((folder / n for n in ("vae", "video_vae", "visual_vae") if (folder / n).is_dir()), folder / "vae")


def _index(folder: Path) -> Mapping[str, Any]:
    path = folder / "model_index.json"
    return read_json(path) if path.is_file() else {}
