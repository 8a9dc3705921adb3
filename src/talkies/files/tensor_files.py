"""Safetensors on disk: one file, or a folder with one file or a sharded index. Headers first, data on demand."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from talkies.errors import CheckpointError
from talkies.files.read_ahead import Span

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
ALIGNMENT_BYTES = 64  # what torch gives its own allocations
MAX_HEADER_BYTES = 100_000_000


class Entry(NamedTuple):
    """``start .. stop``: where its bytes lie in ``file``."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int


class TensorFiles:
    """The tensors of a path. Files open once, memory-mapped, when their first tensor is asked for.

    ``align=False`` is for tensors that go on to a GPU: where they lie on the CPU means nothing there, and aligning
    copies.
    """

    def __init__(self, path: Path | str, *, align: bool = True) -> None:
        self.path = Path(path)
        self._align = align
        self.bytes_asked = 0  # stored bytes of the tensors that were handed out
        self.keys: dict[str, Entry] = {}
        self._open: dict[Path, Any] = {}
        for file in weight_files(self.path):
            for key, entry in read_header(file).items():
                if key in self.keys:
                    raise CheckpointError(f"{key!r} is in both {self.keys[key].file} and {file}", param=key)
                self.keys[key] = entry

    def file_of(self, key: str) -> Path:
        return self.keys[key].file

    def spans(self, keys: Iterable[str]) -> list[Span]:
        """Where tensors lie, for a :class:`ReadAhead`."""
        return [Span(key, self.keys[key].file, self.keys[key].start, self.keys[key].stop) for key in keys]

    def tensor(self, key: str) -> Tensor:
        """On CPU, memory-mapped privately: writing to it leaves the file alone.

        Raises ``CheckpointError`` for a damaged file.
        """
        tensor = self.peek(key)
        self.bytes_asked += tensor.nbytes
        return aligned(tensor) if self._align else tensor

    def peek(self, key: str) -> Tensor:
        """The same wherever it is mapped, not counted as read: to look at, not to compute with."""
        with self._reading(key) as opened:
            tensor: Tensor = opened.get_tensor(key)
        return tensor

    def part(self, key: str, axis: int, start: int, stop: int) -> Tensor:
        """``start .. stop`` along ``axis`` (0 or 1) of a tensor; the rest of it is not read. May be a view of the file.

        Raises as :meth:`tensor`.
        """
        span = slice(start, stop)
        with self._reading(key) as opened:
            cut = opened.get_slice(key)
            tensor: Tensor = cut[span] if axis == 0 else cut[:, span]
        self.bytes_asked += tensor.nbytes
        return tensor

    @contextmanager
    def _reading(self, key: str) -> Iterator[Any]:
        file = self.keys[key].file
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt", device="cpu")
            yield self._open[file]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: {key!r} cannot be read: {error}", param=key) from None


def aligned(tensor: Tensor) -> Tensor:
    """``tensor`` at an address that is a multiple of 64, copied if need be.

    A mapped file puts tensors anywhere, and CPU matrix products round differently at odd addresses: without this
    the same weights in another file would give other last bits.
    """
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a path; raises ``CheckpointError`` when there are none or it is unclear which."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CheckpointError(f"{path} does not exist", hint="pass a folder or a .safetensors file")
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise CheckpointError(f"{path} has several weight indices: " + ", ".join(i.name for i in indices))
    if indices:
        return _indexed(indices[0])
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} holds no .safetensors file", hint="the download may be incomplete")
    if len(files) > 1:
        raise CheckpointError(
            f"{path} holds {len(files)} weight files and no index: " + ", ".join(f.name for f in files[:4]),
            hint="keep one, or add the *.safetensors.index.json",
        )
    return files


def _indexed(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"{index} is not a weight index: {error!r}") from None
    files = [index.parent / name for name in names]
    for name, file in zip(names, files, strict=True):
        if Path(name).name != name:
            raise CheckpointError(f"{index} names {name!r}, which is not a file of its folder")
        if not file.is_file():
            raise CheckpointError(f"{file} is missing", hint=f"{index.name} lists it; the download may be incomplete")
    return files


def read_header(file: Path) -> dict[str, Entry]:
    """Names, shapes and dtypes of one file, checked against its size; raises ``CheckpointError`` if it is damaged."""
    header, data_bytes = raw_header(file)
    base = file.stat().st_size - data_bytes
    entries: dict[str, Entry] = {}
    with _damaged(file):
        for key, value in header.items():
            if key == "__metadata__":
                continue
            dtype, shape = DTYPES[value["dtype"]], tuple(int(n) for n in value["shape"])
            start, stop = value["data_offsets"]
            if not 0 <= start <= stop <= data_bytes or stop - start != prod(shape) * dtype.itemsize:
                raise ValueError(f"{key!r} spans bytes {start}..{stop} of {data_bytes}")
            entries[key] = Entry(file, shape, dtype, base + start, base + stop)
    return entries


def raw_header(file: Path) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file and the number of data bytes after it."""
    with _damaged(file), file.open("rb") as handle:
        size = file.stat().st_size
        (length,) = struct.unpack("<Q", handle.read(8))
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(handle.read(length))
        if not isinstance(header, dict):
            raise ValueError("the header is not a JSON object")
        return header, size - 8 - length


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    """Turns what a damaged file raises into one clear ``CheckpointError``."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, OSError) as error:
        raise CheckpointError(f"{file} is not a whole safetensors file: {error}", hint="download it again") from None
