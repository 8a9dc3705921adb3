"""What each component cost to load: seconds, stored bytes, bytes a second, in the log of every start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

log = logging.getLogger(__name__)

Say = Callable[[str], object]


@dataclass
class Part:
    """``num_bytes`` is filled by whoever loads: stored bytes, not those of what became of them."""

    num_bytes: int = 0


class LoadReport:
    """Adds up the parts of one engine. Lines go to the log, and to ``say``: a worker's log is its parent's."""

    def __init__(self, device: torch.device, say: Say = lambda line: None) -> None:
        self._device, self._say = device, say
        self.num_bytes = 0
        self.seconds = 0.0

    def line(self, text: str) -> None:
        log.info("%s", text)
        self._say(text)

    @contextmanager
    def part(self, name: str) -> Iterator[Part]:
        """One component; nothing is said of one that fails."""
        part, began = Part(), time.perf_counter()
        yield part
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # weights are there when the device has them
        seconds = time.perf_counter() - began
        self.num_bytes += part.num_bytes
        self.seconds += seconds
        self.line(f"{name} loaded: {rate(part.num_bytes, seconds)}")

    @contextmanager
    def checks(self, what: str | None) -> Iterator[None]:
        """What is checked before anything is loaded; nothing is said where ``what`` is ``None``."""
        began = time.perf_counter()
        yield
        if what is not None:
            self.line(f"{what} checked in {time.perf_counter() - began:.1f} s")

    def total(self) -> str:
        return rate(self.num_bytes, self.seconds)


def rate(num_bytes: int, seconds: float) -> str:
    """``51.50 GB in 12.3 s, 4.19 GB/s``"""
    return f"{_size(num_bytes)} in {seconds:.1f} s, {_size(num_bytes / max(seconds, 1e-3))}/s"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
