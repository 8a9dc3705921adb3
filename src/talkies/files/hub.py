"""A checkpoint on the hub: the files of it that are wanted, or its configs and the headers of its weights alone."""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from talkies.errors import CheckpointError

# From the files of a repository, those that are needed; from none (there is no network), patterns of all that could be.
Choose: TypeAlias = Callable[[Sequence[str]], list[str]]
WEIGHTS = ".safetensors"


def download(repo: str, revision: str | None, choose: Choose) -> Path:
    """The folder of ``repo`` in the hub's cache with the chosen files; those that are there are not fetched again.

    Raises ``CheckpointError`` in one line where it cannot be had.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=choose(_listed(repo, revision))))
    except Exception as error:  # the client raises its own, its HTTP library's and the system's errors alike
        raise _unreachable(repo, error) from None


def headers(repo: str, revision: str | None, choose: Choose) -> Path:
    """A folder like the one of :func:`download` for those who read configs and headers: of each file of weights the
    header is fetched, and its data is a hole of the right size. It is gone when the process ends.

    Raises as :func:`download`.
    """
    from huggingface_hub import HfApi, snapshot_download

    listed = _listed(repo, revision)
    if not listed:
        return download(repo, revision, choose)  # what is in the cache
    chosen = choose(listed)
    folder = Path(tempfile.mkdtemp(prefix="talkies-hub-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        others = [name for name in chosen if not name.endswith(WEIGHTS)]
        # Not into the cache: what lies there is what a checkpoint's hash is of.
        snapshot_download(repo, revision=revision, allow_patterns=others, local_dir=folder)
        for name in (name for name in chosen if name.endswith(WEIGHTS)):
            known = HfApi().parse_safetensors_file_metadata(repo, name, revision=revision)
            entries = {
                key: {"dtype": str(one.dtype), "shape": list(one.shape), "data_offsets": list(one.data_offsets)}
                for key, one in known.tensors.items()
            }
            _write_header(_place(folder, name), entries)
    except Exception as error:
        raise _unreachable(repo, error) from None
    return folder


def _listed(repo: str, revision: str | None) -> list[str]:
    """Its files; none where the hub does not say: then its client looks into the cache, or raises the reason."""
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(repo, revision=revision)
    except Exception:  # no network, told to stay offline, gated, not there
        return []


def _place(folder: Path, name: str) -> Path:
    """Where ``name`` goes; raises ``CheckpointError`` for one that would leave the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{name} is no name of a file in a repository")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return folder / path


def _write_header(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    text = json.dumps(entries).encode()
    num_bytes = max((one["data_offsets"][1] for one in entries.values()), default=0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + num_bytes)  # a hole, which takes no room


def _unreachable(repo: str, error: Exception) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CheckpointError(
        f"{repo} is not a local folder and cannot be fetched from the hub: {reason}",
        hint="download it once where there is a network, then pass its folder",
        param="model",
    )
