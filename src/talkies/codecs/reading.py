"""Reading component folders: JSON configs and safetensors, single or sharded, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from talkies.errors import CheckpointError
from talkies.model.safetensors_files import TensorFiles


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ``CheckpointError`` naming the file when it is absent or is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}", param=str(path)) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}", param=str(path)) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds {type(found).__name__}, not an object", param=str(path))
    return found


class WeightFolder:
    """The tensors of one component, read lazily by name: the DiT's own reader, seen as names and shapes.

    ``file`` names one safetensors file; without it the folder's index or single file is found. Raises
    ``CheckpointError`` naming what is missing or damaged.
    """

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        self.folder = folder
        self._files = TensorFiles(file or folder)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._files.keys)

    def read(self, key: str) -> Tensor:
        """The stored tensor, on the CPU, in its stored dtype."""
        return self._files.tensor(key)

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
    if found != expected:
        raise CheckpointError(
            f"{where}: weight {key} has shape {list(found)}, the config asks for {list(expected)}",
            hint="config.json and the weights must come from one checkpoint",
            param=where,
        )


def upcast(tensor: Tensor, device: torch.device | str) -> Tensor:
    """``tensor`` on ``device`` in float32: 16-bit storage is a disk format, never the precision of an island."""
    return tensor.to(device=device, dtype=torch.float32)
