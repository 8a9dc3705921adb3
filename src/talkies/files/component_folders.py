"""Reading component folders: safetensors, single or sharded, one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from talkies.errors import CheckpointError
from talkies.files.read_ahead import ReadAhead, grouped
from talkies.files.tensor_files import TensorFiles


def stated(config: Mapping[str, Any], known: Collection[str], aliases: Mapping[str, str]) -> dict[str, Any]:
    """The keys of ``known`` that ``config`` states, under their own names or ``aliases``; lists become tuples."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = aliases.get(key, key)
        if name in known:
            found[name] = tuple(value) if isinstance(value, list) else value
    return found


class WeightFolder:
    """The tensors of one component, read lazily by name: the DiT's own reader, seen as names and shapes.

    ``file`` names one safetensors file; without it the folder's index or single file is found. Raises
    ``CheckpointError`` naming what is missing or damaged.
    """

    def __init__(self, folder: Path, file: Path | None = None, *, align: bool = True) -> None:
        self.folder = folder
        self._files = TensorFiles(file or folder, align=align)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._files.keys)

    @property
    def bytes_asked(self) -> int:
        """Stored bytes of what was read."""
        return self._files.bytes_asked

    def read(self, key: str) -> Tensor:
        """The stored tensor, on the CPU, in its stored dtype."""
        return self._files.tensor(key)

    def peek(self, key: str) -> Tensor:
        """The same wherever it is mapped: to look at, not to compute with."""
        return self._files.peek(key)

    def in_order(self, keys: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of ``keys`` in their order; while one is used, those after it come from the disk.

        Raises ``CheckpointError`` naming the one that cannot be read.
        """
        entries = self._files.keys
        groups = grouped([(key, entries[key].stop - entries[key].start) for key in keys])
        spans = [self._files.spans(group) for group in groups]
        ahead = ReadAhead()
        for group, now, then in zip(groups, spans, [*spans[1:], []], strict=True):
            ahead.begin(now, then)
            for key in group:
                yield key, self.read(key)

    def shape(self, key: str) -> tuple[int, ...]:
        """The stored shape, without reading the data."""
        return self._files.keys[key].shape


def check_names(found: Iterable[str], expected: Iterable[str], where: str) -> None:
    """Raises ``CheckpointError`` naming missing and unknown keys of ``where``."""
    found, expected = set(found), set(expected)
    for word, keys in (("missing", expected - found), ("unknown", found - expected)):
        if keys:
            shown = ", ".join(sorted(keys)[:4])
            more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
            raise CheckpointError(
                f"{where}: {word} weights {shown}{more}",
                hint="config.json and the weights must come from one checkpoint",
                param=where,
            )


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Gives ``module`` (built on the meta device) its weights: every name once, every shape equal, by reference.

    Raises ``CheckpointError`` naming the first key that is missing, unknown or misshapen.
    """
    slots = module.state_dict()
    check_names(tensors, slots, where)
    for key, slot in slots.items():
        check_shape(key, tuple(tensors[key].shape), tuple(slot.shape), where)
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    module.requires_grad_(False)


def check_shape(key: str, found: tuple[int, ...], expected: tuple[int, ...], where: str) -> None:
    """Raises ``CheckpointError`` naming ``key`` of ``where`` when the shapes differ."""
    if found != expected:
        raise CheckpointError(
            f"{where}: weight {key} has shape {list(found)}, the config asks for {list(expected)}",
            hint="config.json and the weights must come from one checkpoint",
            param=where,
        )


def upcast(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device`` in float32: 16-bit storage is a disk format, never the precision of an island."""
    return tensor.to(device=device, dtype=torch.float32)
