"""A running request on disk: its latents and step index, so that a killed run goes on where it was.

One safetensors file a job, written aside and renamed: a reader sees the old one or the new one, whole. What it is
good for is written into it: the request, the model and the output it belongs to. Anything that does not fit is
ignored, and the job starts over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talkies.engine.pipeline.state import RequestState
from talkies.files.paths import local_path
from talkies.request import VideoRequest

log = logging.getLogger(__name__)
FILE_NAME = "state.safetensors"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """``output`` is the one in work; those before it are finished files."""

    output: int
    step: int
    tensors: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ResumeFile:
    """The saved state of one job of one model."""

    folder: Path
    request: VideoRequest
    model_hash: str

    @property
    def path(self) -> Path:
        return self.folder / FILE_NAME

    def save(self, state: RequestState, output: int) -> None:
        """Raises ``OSError`` when the disk refuses; the file of before is then still there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".{FILE_NAME}.part"
        tensors = {name: tensor.contiguous() for name, tensor in state.tensors().items()}
        try:
            save_file(tensors, aside, metadata={**self._identity(), "output": str(output)})
            os.replace(aside, self.path)
        except SafetensorError as error:  # its own wrapping of the system's error
            aside.unlink(missing_ok=True)
            raise OSError(str(error)) from None
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def load(self) -> Saved | None:
        """The state to go on from; None when there is none, or one of another request or model."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                found = dict(file.metadata() or {})
                output = int(found.pop("output"))
                if found != self._identity():
                    log.warning("%s belongs to another request or model: starting over", self.path)
                    return None
                # Cloned into memory of torch's alignment, which decides the last bits of a matrix product.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return Saved(output=output, step=int(tensors["step"]), tensors=tensors)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            log.warning("%s cannot be read (%s): starting over", self.path, error)
            return None

    def drop(self) -> None:
        """The job has ended: nothing is left to resume."""
        for path in (self.path, self.folder / f".{FILE_NAME}.part"):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove %s: %s", path, error)

    def _identity(self) -> dict[str, str]:
        return {"request": request_hash(self.request), "model": self.model_hash}


def request_hash(request: VideoRequest) -> str:
    """Equal for requests that make the same clip. Files are known by name, size and time, URLs by their text."""
    parts = [json.dumps(request.to_dict(), sort_keys=True, ensure_ascii=True)]
    for condition in request.conditions:
        try:
            stat = os.stat(local_path(condition.uri))
            parts.append(f"{stat.st_size} {stat.st_mtime_ns}")
        except (OSError, ValueError):  # a URL, or gone: preparing it again will say so
            parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def sweep_parts(folder: Path, *, before_s: float) -> int:
    """Removes partial files that a killed worker left in a job's folder; returns how many."""
    removed = 0
    for path in folder.glob(".talkies-*.part"):
        with suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()
                removed += 1
    return removed
