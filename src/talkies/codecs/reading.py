"""Reading component folders: JSON configs and safetensors, single or sharded, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from talkies.errors import CheckpointError
from talkies.model.safetensors_files import aligned

# Port folders use the diffusers name for VAEs and the transformers name for the text encoder.
WEIGHT_STEMS = ("diffusion_pytorch_model", "model")


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
    """The tensors of one component, read lazily by name. Weights are never all in memory twice."""

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        """``file`` names one safetensors file; without it the folder's index or single file is found."""
        self.folder = folder
        self._file_of_key: dict[str, Path] = {}
        self._open_files: dict[Path, Any] = {}
        for path in [file] if file else _weight_files(folder):
            for key in self._open(path).keys():  # noqa: SIM118 - safe_open is not a mapping
                if key in self._file_of_key:
                    raise CheckpointError(f"{folder}: key {key} is in two files", param=str(folder))
                self._file_of_key[key] = path

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._file_of_key)

    def read(self, key: str) -> Tensor:
        """The stored tensor, on the CPU, in its stored dtype."""
        return aligned(self._open(self._file_of_key[key]).get_tensor(key))

    def shape(self, key: str) -> tuple[int, ...]:
        """The stored shape, without reading the data."""
        return tuple(self._open(self._file_of_key[key]).get_slice(key).get_shape())

    def _open(self, path: Path) -> Any:
        if path not in self._open_files:
            try:
                self._open_files[path] = safe_open(str(path), framework="pt", device="cpu").__enter__()
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read weights {path}: {error}", param=str(path)) from error
        return self._open_files[path]


def _weight_files(folder: Path) -> list[Path]:
    for stem in WEIGHT_STEMS:
        index = folder / f"{stem}.safetensors.index.json"
        if index.is_file():
            names = sorted(set(read_json(index).get("weight_map", {}).values()))
            absent = [name for name in names if not (folder / name).is_file()]
            if absent or not names:
                raise CheckpointError(
                    f"{index} lists {len(names)} files, absent: {', '.join(absent) or 'all'}",
                    hint="finish the download of the checkpoint",
                    param=str(index),
                )
            return [folder / name for name in names]
        single = folder / f"{stem}.safetensors"
        if single.is_file():
            return [single]
    raise CheckpointError(
        f"{folder} holds no weights",
        hint="expected " + " or ".join(f"{stem}.safetensors (or its .index.json)" for stem in WEIGHT_STEMS),
        param=str(folder),
    )


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
