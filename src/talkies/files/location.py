"""Where a checkpoint is, and a cheap fingerprint of it."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from talkies.errors import CheckpointError, ConfigError
from talkies.files.card import FILE_NAME as CARD_FILE
from talkies.files.home import base_folder, expanded
from talkies.files.hub import Choose, download, headers
from talkies.files.step_caches import FILE_NAME as STEP_CACHES_FILE

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SAMPLE_BYTES = 65_536
NUM_SAMPLES = 8
SMALL_FILE_BYTES = 16 * 2**20


def resolve_checkpoint(
    path_or_hub_id: str | Path,
    choose: Choose = lambda files: list(files) or ["*"],
    *,
    revision: str | None = None,
    headers_only: bool = False,
) -> Path:
    """A local folder or file as it is; of a hub id (``owner/name``) the files that ``choose`` picks, downloaded or
    taken from the local cache. ``headers_only``: of weights no more than shapes can be read.

    Raises ``CheckpointError`` in one line when it is neither, the hub cannot be reached, or there is no place to keep
    it, and ``ConfigError`` for a ``~`` without a home and for the revision of a folder.
    """
    local = expanded(path_or_hub_id, "model")
    name = str(path_or_hub_id)
    if local.exists():
        if revision is not None:
            raise ConfigError(
                f"revision={revision}, but {name} is a local folder, which has none",
                hint="leave it out, or give a hub id",
                param="revision",
            )
        return local
    if not HUB_ID.fullmatch(name):
        raise CheckpointError(f"no checkpoint at {name}", hint="pass a folder, or a hub id such as owner/name")
    named = any(os.environ.get(variable) for variable in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    if not named and base_folder("XDG_CACHE_HOME", ".cache") is None:
        raise CheckpointError(
            f"{name} is not a local folder, and there is no home folder to keep a download in",
            hint="set HF_HOME to a folder, or download it and pass its folder",
        )
    return (headers if headers_only else download)(name, revision, choose)


def model_hash(folder: Path | str) -> str:
    """A stable sha256 of a checkpoint that reads a few MB of it, whatever its size.

    Leaves out prose (``*.md``), ``card.json`` and ``step_caches.json``: a corrected model card is not another model.
    Covers every other file's relative name and size; small files whole; of large ones their start (a safetensors header
    included) and evenly spaced samples.
    Not a proof of integrity: a changed byte between samples goes unseen.
    """
    root = Path(folder)
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file() and not _ignored(p, root))
    if not files:
        raise CheckpointError(f"{root} holds no files")
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        name = file.name if file == root else file.relative_to(root).as_posix()
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as handle:
            if size <= SMALL_FILE_BYTES and file.suffix != ".safetensors":
                digest.update(handle.read())
                continue
            digest.update(handle.read(_head_bytes(handle.read(8), size)))
            for i in range(NUM_SAMPLES):
                handle.seek(max(0, (size - SAMPLE_BYTES) * i // (NUM_SAMPLES - 1)))
                digest.update(handle.read(SAMPLE_BYTES))
    return digest.hexdigest()


def hash_with(checkpoint: str, adapters: Sequence[tuple[str, float]]) -> str:
    """The hash of a checkpoint with adapters in it (hash and strength of each, in order); its own without any."""
    if not adapters:
        return checkpoint
    words = [checkpoint, *(f"{digest} {strength!r}" for digest, strength in adapters)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _head_bytes(first: bytes, size: int) -> int:
    """Length of a safetensors header; of any other file, one sample."""
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    return length if 0 < length <= min(size, SMALL_FILE_BYTES) else SAMPLE_BYTES


def _ignored(path: Path, root: Path) -> bool:
    is_card = path.suffix == ".md" or path in (root / CARD_FILE, root / STEP_CACHES_FILE)
    return is_card or any(part.startswith(".") for part in path.relative_to(root).parts)
