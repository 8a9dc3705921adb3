"""A checkpoint folder: its two disk layouts, its partitions, and which task each of them serves.

Port: ``vae/ audio_vae/ text_encoder/ tokenizer/ processor/ transformer/ transformer_ref/``.
Original: ``FL2VA/`` and ``Ref2VA/``, each with ``video_vae/ audio_vae/ text_encoder/ tokenizer/ processor/
transformer/`` and a ``model_index.json`` whose ``_minimax_h3`` states the partition; one of the two alone also loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from talkies.errors import CheckpointError, ConfigError
from talkies.files.json_files import read_json
from talkies.h3.geometry import Limits

PARTITION_TASKS: Mapping[str, tuple[str, ...]] = {"fl2va": ("t2va", "fl2va"), "ref2va": ("ref2va",)}
ORIGINAL_FOLDERS: Mapping[str, str] = {"FL2VA": "fl2va", "Ref2VA": "ref2va"}


PORT_FOLDERS: Mapping[str, str] = {"fl2va": "transformer", "ref2va": "transformer_ref"}
SHARED_FOLDERS = (
    *("vae", "video_vae", "visual_vae", "audio_vae"),
    *("text_encoder", "tokenizer", "processor", "scheduler"),
)
PROSE = (".json", ".md", ".txt", ".jinja")  # at the top of a folder
NEVER_READ = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".mp4", ".gif", ".png", ".jpg")


def needed_files(files: Sequence[str], task_type: str) -> list[str]:
    """Of a repository's files those that are read when ``task_type`` is served: one partition or all, of one layout,
    the one that :func:`find_parts` prefers. Without a list (no network), patterns of them in either layout.

    Raises ``ConfigError`` for a partition that the repository does not have."""
    wanted = tuple(PARTITION_TASKS) if task_type == "combined" else (task_type,)
    if not files:
        originals = [f"{folder}/*" for folder, name in ORIGINAL_FOLDERS.items() if name in wanted]
        ports = [f"{folder}/*" for folder in (*SHARED_FOLDERS, *(PORT_FOLDERS[name] for name in wanted))]
        return [*originals, *ports, *(f"*{suffix}" for suffix in PROSE)]
    folders = {name.partition("/")[0] for name in files if "/" in name}
    found = [folder for folder, name in ORIGINAL_FOLDERS.items() if name in wanted and folder in folders]
    is_one = not folders.isdisjoint(("video_vae", "visual_vae"))  # a single partition of the original layout
    has = [name for folder, name in ORIGINAL_FOLDERS.items() if folder in folders]
    has += [name for name, folder in PORT_FOLDERS.items() if folder in folders and name not in has]
    if has and not is_one and not set(wanted) & set(has):
        raise ConfigError(
            f"task_type={task_type}, but the checkpoint has {', '.join(has)}",
            hint="use task_type=combined",
            param="task_type",
        )
    kept = [name for name in files if "/" not in name and name.endswith(PROSE)]
    for place, folder in enumerate(found or [""]):
        # Parts that both partitions have are read from the first.
        parts = ("transformer",) if folder or is_one else tuple(PORT_FOLDERS[name] for name in wanted)
        parts = parts if place else (*SHARED_FOLDERS, *parts)
        prefix = f"{folder}/" if folder else ""
        for name in files:
            top, slash, _ = name.removeprefix(prefix).partition("/")
            is_here = name.startswith(prefix) and (top in parts if slash else bool(folder) and name.endswith(PROSE))
            if is_here and not name.endswith(NEVER_READ):
                kept.append(name)
    return kept


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
    transformers = {name: root / sub for name, sub in PORT_FOLDERS.items() if (root / sub).is_dir()}
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
            hint="use task_type=combined",
            param="task_type",
        )
    transformers = {task_type: parts.transformers[task_type]}
    return replace(parts, transformers=transformers), replace(limits, tasks=tasks)


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
