"""What the parts of ``bench.memory`` share: the machine, the sizes, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from talkies.benchmarks import forward as fw
from talkies.benchmarks.timing import Clock
from talkies.capacity.hardware import H200, Hardware
from talkies.capacity.sizes import Sizes
from talkies.h3.config import DiTConfig


@dataclass
class Run:
    device: torch.device
    config: DiTConfig
    shapes: Sequence[fw.Shape]
    smoke: bool
    kernels: str
    attention: str
    vram_budget: int
    ram_bytes: int
    points: Sequence[int]
    repeats: int
    rank_parts: tuple[str, ...]
    out: Path
    clock: Clock
    hardware: Hardware = H200
    metrics: dict[str, float] = field(default_factory=dict)
    peer: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def sizes(self) -> Sizes:
        return Sizes(dit=self.config)

    def say(self, text: str) -> None:
        print(f"[{self.clock.spent_s:5.0f} s] {text}", flush=True)

    def metric(self, name: str, value: float, unit: str = "s") -> None:
        self.metrics[name] = float(value)
        self.say(f"  {name:<44} {value:>12.6g} {unit}")

    def withdraw(self, *names: str) -> None:
        """Figures of a forward whose outputs were wrong: they are not reported, nor what an earlier call found."""
        for name in names:
            self.metrics.pop(name, None)
        self.withdrawn |= set(names)

    def check(self, name: str, good: bool, detail: str = "") -> None:
        self.checks[name] = bool(good)
        self.say(f"  {'ok' if good else 'NOT OK':<6} {name} {detail}")
