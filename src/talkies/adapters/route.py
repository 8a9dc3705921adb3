"""Which adapter goes into which of a checkpoint's DiTs, and what requests may know of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from talkies.adapters.fuse import Applied
from talkies.adapters.named_path import NamedPath
from talkies.adapters.read import AdapterFile, open_adapter
from talkies.errors import ConfigError
from talkies.few_steps import AdapterFacts
from talkies.h3.config import DiTConfig
from talkies.h3.partitions import PARTITION_TASKS

_REF = "transformer_ref"  # diffusers' component of the DiT for references


@dataclass(frozen=True)
class Routed:
    """An adapter's file and the keys of it (by component) that go into each partition."""

    file: AdapterFile
    strength: float  # of requests that name no adapters
    parts: Mapping[str, frozenset[str | None]]

    @property
    def tasks(self) -> tuple[str, ...]:
        served = [task for partition, tasks in PARTITION_TASKS.items() if partition in self.parts for task in tasks]
        stated = self.file.contract.tasks
        return tuple(task for task in served if stated is None or task in stated)

    @property
    def notes(self) -> tuple[str, ...]:
        """For the log: what it is, where it goes, and what that was told from."""
        where = f"adapter {self.file.name} of {self.file.path.name}: {len(self.file.meanings)} tensors, into "
        where += " and ".join(self.parts)
        if self.file.contract.tasks is None and _REF not in self.file.components:
            where += ", since it states no task"
        return (where, *(f"adapter {self.file.name}: {note}" for note in self.file.contract.notes))

    @property
    def facts(self) -> AdapterFacts:
        return AdapterFacts(
            name=self.file.name,
            sha256=self.file.sha256,
            strength=self.strength,
            tasks=self.tasks,
            ladder=self.file.contract.ladder,
        )


def open_adapters(given: Sequence[NamedPath], partitions: Sequence[str]) -> tuple[Routed, ...]:
    """Headers, metadata and hashes of all of them; ``partitions`` are those that will be loaded.

    Raises ``CheckpointError``, and ``ConfigError`` for a name that is given twice, an adapter of a partition that is
    not loaded, and two adapters with steps of their own that are both on.
    """
    names = [one.name for one in given]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two adapters are called {name}", hint="give each its own name", param="adapters")
    routed = tuple(_routed(one, partitions) for one in given)
    for task in (task for tasks in PARTITION_TASKS.values() for task in tasks):
        on = [one for one in routed if one.strength and task in one.tasks and one.file.contract.ladder is not None]
        if len(on) > 1:
            raise ConfigError(
                f"adapters {' and '.join(one.file.name for one in on)} were each distilled for steps of their own, and "
                f"both are on for {task}",
                hint=f"give one the strength 0: --adapter {on[1].file.name}=PATH:0, and requests name it",
                param="adapters",
            )
    return routed


def changes_of(routed: Sequence[Routed], partition: str, config: DiTConfig) -> list[Applied]:
    """What they change of one DiT, at the strengths of requests that name none. Raises ``CheckpointError``."""
    return [
        Applied(one.file.name, one.file.changes(config, one.parts[partition]), one.strength)
        for one in routed
        if partition in one.parts
    ]


def _routed(given: NamedPath, partitions: Sequence[str]) -> Routed:
    """A prefix of its keys says which DiT, else its tasks do; else it is for keyframes and text, as all published ones
    are that do not say, or for the one DiT that is loaded."""
    file = open_adapter(given)
    components, stated = file.components, file.contract.tasks
    parts: dict[str, frozenset[str | None]]
    if _REF in components:
        parts = {"ref2va": frozenset({_REF})}
        if components - {_REF}:
            parts["fl2va"] = frozenset(components - {_REF})
    elif stated is not None:
        parts = {p: components for p, tasks in PARTITION_TASKS.items() if set(tasks) & set(stated)}
    else:
        parts = {partitions[0] if len(partitions) == 1 else "fl2va": components}
    loaded = {partition: keys for partition, keys in parts.items() if partition in partitions}
    if not loaded:
        raise ConfigError(
            f"adapter {given.name} is for {' and '.join(parts)}, and loaded are {' and '.join(partitions)}",
            hint="leave it out, load the other partition (task_type=combined), or say "
            f'{{"tasks": [...]}} in {file.path.with_suffix(".json").name} beside it',
            param="adapters",
        )
    return Routed(file, given.strength, loaded)
