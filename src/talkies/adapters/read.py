"""An adapter's file, checked: what it changes of a DiT, tensor by tensor, before any weight of a checkpoint is read.

Headers first: names and shapes are judged without a byte of data. Then every tensor is read once, for a number that is
none (NaN, Inf). Every key is used, or named in the refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from talkies.adapters.contract import Contract, read_contract
from talkies.adapters.named_path import NamedPath
from talkies.adapters.names import FLATTENED, Meaning, Role, Target, meanings, stored_keys
from talkies.errors import CheckpointError
from talkies.files.home import expanded
from talkies.files.location import model_hash
from talkies.files.tensor_files import TensorFiles, raw_header, weight_files
from talkies.h3 import dit_keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Form, Layout, Spec

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
WHOLE_HASH_BYTES = 4 << 30  # larger files are sampled, as checkpoints are


@dataclass(frozen=True, slots=True)
class LowRank:
    """``scale * up @ down`` is added to rows from ``row`` on. ``up`` and ``down`` are keys of the file."""

    row: int
    up: str
    down: str
    scale: float


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensor ``key`` is added to rows from ``row`` on, or (``sets``) taken instead of them."""

    row: int
    key: str
    sets: bool


Piece = LowRank | Whole


@dataclass(frozen=True)
class Changes:
    """What one adapter changes of one DiT, by our names. ``ours`` reads a key of it in the order of our rows."""

    files: TensorFiles
    layout: Layout
    config: DiTConfig
    pieces: Mapping[str, tuple[Piece, ...]]
    specs: Mapping[str, Spec] = field(repr=False)

    def ours(self, name: str, key: str) -> Tensor:
        """The file's tensor on the CPU; its rows are a part's of ours where the file splits what we hold fused."""
        tensor, spec = self.files.tensor(key), self.specs[name]
        if self.layout is Layout.PORT and spec.form is Form.QKV:
            return tensor
        return dit_keys.join(spec, [tensor], self.layout, self.config)


@dataclass(frozen=True)
class AdapterFile:
    """One adapter on disk, its header read. ``contract`` is what it says of itself."""

    name: str
    path: Path
    sha256: str
    contract: Contract
    files: TensorFiles
    meanings: Sequence[Meaning]

    @property
    def components(self) -> frozenset[str | None]:
        """DiTs that its keys name; ``None``: some name none."""
        return frozenset(meaning.component for meaning in self.meanings)

    def changes(self, config: DiTConfig, components: frozenset[str | None]) -> Changes:
        """What its keys of ``components`` change of a DiT of ``config``.

        Raises ``CheckpointError`` naming the first key that has no place there, is misshapen, lacks its other half, or
        holds a number that is none.
        """
        mine = [meaning for meaning in self.meanings if meaning.component in components]
        naming = self._naming(mine, config)
        layout = self._layout(mine, naming)
        targets = stored_keys(config, layout)
        found: dict[str, dict[int, dict[Role, Meaning]]] = {}
        specs: dict[str, Spec] = {}
        for meaning in mine:
            target = targets.get(meaning.stored)
            if target is None:
                if meaning.stored == dit_keys.ROPE_KEY:
                    continue  # recomputed anyway
                raise self._refused(meaning.key, "names no tensor of this DiT", mine, targets)
            roles = found.setdefault(target.spec.name, {}).setdefault(target.part, {})
            if meaning.role in roles:
                raise self._error(meaning.key, f"and {roles[meaning.role].key!r} are about the same tensor")
            roles[meaning.role] = meaning
            specs[target.spec.name] = target.spec
        pieces = {
            name: tuple(
                piece for part, roles in parts.items() for piece in self._pieces(specs[name], part, roles, layout)
            )
            for name, parts in found.items()
        }
        if not pieces:
            raise CheckpointError(f"{self.path} holds no tensor of a DiT", hint="is it complete?", param=self.name)
        self._check_finite(mine)
        return Changes(self.files, layout, config, pieces, specs)

    def _naming(self, mine: Sequence[Meaning], config: DiTConfig) -> Layout:
        """Whose names its modules have: the ones that more keys are found under."""
        known = {layout: stored_keys(config, layout) for layout in (Layout.PORT, Layout.REPACKED)}
        counts = {layout: sum(meaning.stored in keys for meaning in mine) for layout, keys in known.items()}
        if not any(counts.values()):
            key = mine[0].key if mine else ""
            raise CheckpointError(
                f"{self.path} is no adapter of a MiniMax-H3 DiT: none of its {len(mine)} keys is one of its names, "
                f"such as {key!r}",
                hint="is it another model's?",
                param=self.name,
            )
        return max(counts, key=lambda layout: counts[layout])

    def _layout(self, mine: Sequence[Meaning], naming: Layout) -> Layout:
        """The order of rows. In the original's names queries, keys and values lie stacked or head by head, and shapes
        do not say which: the file does, or the habit of whoever wrote it."""
        if naming is Layout.PORT:
            return Layout.PORT
        if self.contract.qkv_layout is not None:
            return Layout.ORIGINAL if self.contract.qkv_layout == "grouped" else Layout.REPACKED
        whole = [m.key for m in mine if m.role in (Role.ADD, Role.SET) and "qkv_proj" in m.stored]
        if whole and not any(meaning.stored == dit_keys.ROPE_KEY for meaning in mine):
            raise CheckpointError(
                f"{self.path}: nothing says in which order the rows of {whole[0]!r} lie",
                hint=f'write {{"qkv_layout": "stacked"}} into {self.path.with_suffix(".json").name} beside it (all '
                'queries, then all keys, then all values), or "grouped" (head by head, as MiniMax releases them)',
                param="qkv_layout",
            )
        # MiniMax's own files have the rope's buffer; DiffSynth-Studio trains on their order and writes PEFT's infix.
        grouped = whole or any(meaning.infix is not None for meaning in mine)
        return Layout.ORIGINAL if grouped else Layout.REPACKED

    def _pieces(self, spec: Spec, part: int, roles: Mapping[Role, Meaning], layout: Layout) -> list[Piece]:
        shape = dit_keys.file_shape(spec, layout)
        row = part * shape[0] if layout is Layout.PORT and spec.form is Form.QKV else 0
        for role in (Role.ADD, Role.SET):
            if role in roles:
                self._check_shape(roles[role].key, shape)
        if Role.SET in roles and len(roles) > 1:
            other = next(meaning.key for role, meaning in roles.items() if role is not Role.SET)
            raise self._error(other, f"changes what {roles[Role.SET].key!r} takes the place of")
        pieces: list[Piece] = []
        if Role.DOWN in roles or Role.UP in roles:
            pieces.append(self._low_rank(shape, row, roles))
        elif Role.ALPHA in roles:
            raise self._error(roles[Role.ALPHA].key, "has no pair of matrices to count for")
        for role in (Role.ADD, Role.SET):
            if role in roles:
                pieces.append(Whole(row, roles[role].key, role is Role.SET))
        return pieces

    def _low_rank(self, shape: tuple[int, ...], row: int, roles: Mapping[Role, Meaning]) -> LowRank:
        for role, other in ((Role.DOWN, Role.UP), (Role.UP, Role.DOWN)):
            if role not in roles:
                raise self._error(roles[other].key, f"lacks its other half, lora_{'A' if role is Role.DOWN else 'B'}")
        down, up = roles[Role.DOWN].key, roles[Role.UP].key
        found = self.files.keys[down].shape
        rank = found[0] if len(found) == 2 else 0
        if len(shape) != 2 or rank < 1:
            raise self._error(down, f"has shape {list(found)} for a tensor of shape {list(shape)}")
        self._check_shape(down, (rank, shape[1]))
        self._check_shape(up, (shape[0], rank))
        alpha = None
        if Role.ALPHA in roles:
            key = roles[Role.ALPHA].key
            if self.files.keys[key].shape not in ((), (1,)):
                raise self._error(key, f"has shape {list(self.files.keys[key].shape)}, and is to be one number")
            alpha = float(self.files.peek(key).float().reshape(()))
        module = roles[Role.DOWN].stored.removesuffix(".weight").removeprefix(FLATTENED)
        return LowRank(row, up, down, self.contract.scale(module, rank, alpha))

    def _check_shape(self, key: str, shape: tuple[int, ...]) -> None:
        entry = self.files.keys[key]
        if entry.shape != shape:
            if key.endswith(("proj_out.weight", "proj_out.bias")) and len(entry.shape) == len(shape) + 1:
                raise CheckpointError(
                    f"{self.path}: {key!r} is a bank of {entry.shape[0]} output heads (PDD), of which each step takes "
                    "others, and a DiT here has one",
                    hint="use a few-step adapter without a bank, such as LightX2V Turbo or dense FastH3",
                    param=key,
                )
            raise CheckpointError(
                f"{self.path}: {key!r} has shape {list(entry.shape)}, this DiT takes {list(shape)}",
                hint="it is an adapter of another model, or of a pruned one",
                param=key,
            )
        if not entry.dtype.is_floating_point:
            raise self._error(key, f"is {entry.dtype}, not a float")

    def _check_finite(self, mine: Sequence[Meaning]) -> None:
        for meaning in mine:
            tensor = self.files.peek(meaning.key)
            if not bool(torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor).all()):
                raise CheckpointError(
                    f"{self.path}: {meaning.key!r} holds NaN or Inf", hint="download it again", param=meaning.key
                )

    def _refused(self, key: str, what: str, mine: Sequence[Meaning], targets: Mapping[str, Target]) -> CheckpointError:
        strange = [meaning.key for meaning in mine if meaning.stored not in targets]
        return CheckpointError(
            f"{self.path}: {key!r} {what}",
            hint=f"{len(strange)} of its {len(mine)} keys are unknown: it is another model's, or of another size",
            param=key,
        )

    def _error(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key!r} {what}", hint="the file is incomplete, or damaged", param=key)


def open_adapter(given: NamedPath) -> AdapterFile:
    """Reads headers, metadata and what lies beside the file. Raises ``CheckpointError`` for what is not safetensors."""
    path = expanded(given.path, "adapters")
    for file in [path, *(sorted(path.iterdir()) if path.is_dir() else ())]:
        if file.suffix.lower() in PICKLES and (file == path or not any(path.glob("*.safetensors"))):
            raise _pickle(file)
    if not path.exists():
        raise CheckpointError(
            f"adapter {given.name}: {path} does not exist",
            hint="give a .safetensors file or its folder",
            param="adapters",
        )
    files = weight_files(path)
    for file in files:
        with file.open("rb") as handle:
            if handle.read(4).startswith(_PICKLE_STARTS):
                raise _pickle(file)
    metadata = {str(k): str(v) for k, v in (raw_header(files[0])[0].get("__metadata__") or {}).items()}
    tensors = TensorFiles(path)
    return AdapterFile(
        name=given.name,
        path=path,
        sha256=file_hash(path),
        contract=read_contract(files[0], metadata),
        files=tensors,
        meanings=meanings(tensors.keys, str(path)),
    )


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content; of one over 4 GiB, and of a folder, ``files.location.model_hash``."""
    stat = path.stat()
    return _hashed(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(64)
def _hashed(path: Path, size: int, mtime_ns: int) -> str:
    if path.is_dir() or size > WHOLE_HASH_BYTES:
        return model_hash(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pickle(file: Path) -> CheckpointError:
    return CheckpointError(
        f"{file} is a pickle, which can run code when it is opened",
        hint="convert it to .safetensors where you trust it, with safetensors.torch.save_file",
        param="adapters",
    )
