"""Where a checkpoint is, which parts of it are used, and what they can make: from configs and headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from talkies.adapters.route import Routed, open_adapters
from talkies.codecs.limits import limits_of
from talkies.engine.config import EMBEDDED, EngineConfig, embedded_folder
from talkies.errors import ConfigError
from talkies.files.location import resolve_checkpoint
from talkies.files.step_caches import read_tiers
from talkies.h3.geometry import Limits
from talkies.h3.partitions import PARTITION_TASKS, Parts, find_parts, narrowed, needed_files
from talkies.quality import Tiers


def locate(model: str, *, task_type: str = "combined", revision: str | None = None, headers_only: bool = False) -> Path:
    """The folder of a checkpoint: the embedded one, a path, or a hub id, of which the files for ``task_type`` are
    fetched. Raises ``CheckpointError``, and ``ConfigError`` for a ``revision`` of what is not on the hub."""
    if model == EMBEDDED:
        if revision is not None:
            raise ConfigError(
                f"revision={revision}, but the checkpoint inside the package has none",
                hint="leave it out, or name a model on the hub",
                param="revision",
            )
        return embedded_folder()

    def choose(files: Sequence[str]) -> list[str]:
        return needed_files(files, task_type)

    return resolve_checkpoint(model, choose, revision=revision, headers_only=headers_only)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What will be loaded, as far as configs and headers tell."""

    parts: Parts
    limits: Limits  # with what requests may know of the adapters
    adapters: tuple[Routed, ...]


def checkpoint_of(config: EngineConfig, *, headers_only: bool = False) -> Checkpoint:
    """The one place where a model and its adapters are opened. ``headers_only``: weights will not be read, so a hub id
    costs no download of them.

    Raises ``ConfigError`` and ``CheckpointError``.
    """
    folder = locate(config.model, task_type=config.task_type, revision=config.revision, headers_only=headers_only)
    parts = find_parts(folder)
    parts, limits = narrowed(parts, limits_of(parts), config.task_type)
    if config.step_caches is not None:
        file = config.step_caches
        limits = replace(limits, tiers=Tiers() if file == "none" else read_tiers(parts.root, Path(file)))
    adapters = open_adapters(config.adapters, tuple(parts.transformers))
    return Checkpoint(parts=parts, limits=with_adapters(limits, adapters), adapters=adapters)


def with_adapters(limits: Limits, adapters: Sequence[Routed]) -> Limits:
    """``limits`` with what requests may know of ``adapters``."""
    return replace(limits, adapters=tuple(one.facts for one in adapters))


def parts_and_limits(config: EngineConfig) -> tuple[Parts, Limits]:
    """The parts that will be loaded and what they can make. Raises as :func:`checkpoint_of`."""
    known = checkpoint_of(config)
    return known.parts, known.limits


def for_task(config: EngineConfig, task: str) -> EngineConfig:
    """``config`` with the one partition that serves ``task``, where the checkpoint has it: one request needs no other.

    Raises ``CheckpointError``.
    """
    partition = next(name for name, tasks in PARTITION_TASKS.items() if task in tasks)
    # The headers of a hub's files are asked, before a partition of it is fetched.
    parts = find_parts(locate(config.model, revision=config.revision, headers_only=True))
    return replace(config, task_type=partition) if partition in parts.transformers else config
