"""Reuse by content hash: a condition or prompt that was encoded before is not encoded again.

Exact reuse only: the key covers every byte that the result depends on. Bounded in bytes, least recently used out.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch

Value = TypeVar("Value")
DEFAULT_BUDGET_BYTES = 512 * 2**20


def content_key(*parts: Any) -> str:
    """A hash of strings, numbers, arrays, tensors, tuples and dataclasses of them; types and shapes included."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, torch.Tensor):
        _feed(digest, part.detach().cpu().contiguous().view(torch.uint8).numpy() if part.ndim else part.item())
        digest.update(f"{part.dtype}{tuple(part.shape)};".encode())
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape};".encode())
        digest.update(np.ascontiguousarray(part).data)
    elif is_dataclass(part) and not isinstance(part, type):
        digest.update(f"{type(part).__name__}(".encode())
        for field in fields(part):
            _feed(digest, getattr(part, field.name))
    elif isinstance(part, tuple | list):
        digest.update(f"{len(part)}[".encode())
        for item in part:
            _feed(digest, item)
    elif isinstance(part, str | bytes | int | float | bool | None):
        text = repr(part).encode()
        digest.update(f"{len(text)}:".encode() + text)
    else:
        raise TypeError(f"cannot hash {type(part).__name__} by content")


def num_bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a value, looking into tuples, lists and dataclasses."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(num_bytes(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return sum(num_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


class Memo:
    """A least-recently-used table. Values are shared: whoever gets one must not write into it. Thread-safe."""

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._values: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Any | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: str, value: Any) -> None:
        """Keeps ``value``, or drops it when it alone is over the budget."""
        size = num_bytes(value)
        with self._lock:
            if key in self._values:
                self.used_bytes -= self._values.pop(key)[1]
            if size > self.budget_bytes:
                return
            self._values[key] = (value, size)
            self.used_bytes += size
            while self.used_bytes > self.budget_bytes:
                _, (_, freed) = self._values.popitem(last=False)
                self.used_bytes -= freed

    def remember(self, key: str, compute: Callable[[], Value]) -> Value:
        """The value of ``key``, computed outside the lock when it is not there."""
        found = self.get(key)
        if found is None:
            found = compute()
            self.put(key, found)
        return found

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.used_bytes = 0
