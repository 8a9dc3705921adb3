"""Training in parts: what a stage needs to go on where its last part stopped, in one file.

A part ends when its time is up or with its machine; the file is written every few minutes and at the end of a part,
under another name first, so that a machine that goes away in the middle leaves the file before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


def half(value: Tensor) -> Tensor:
    """Averages and moments in bfloat16: a file of 49 MB, not 79, and what the rounding changes is averaged away."""
    return value.bfloat16() if value.ndim else value


@dataclass
class Part:
    """One part of a stage. Without a file nothing is kept; `limit_s` and `limit_steps` are what this part may train."""

    file: Path | None = None
    limit_s: float = float("inf")
    limit_steps: float = float("inf")
    save_every_s: float = 180.0
    spent_before_s: float = 0.0
    step_before: int = 0
    _saved_at: float = 0.0

    def begin(self, params: list[Tensor], averages: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Puts back what the last part left, in place. The optimizer's own learning-rate tensors stay."""
        self._saved_at = time.perf_counter()
        if self.file is None or not self.file.exists():
            return
        kept = torch.load(self.file, map_location=params[0].device, weights_only=True)
        if [p.shape for p in params] != [p.shape for p in kept["params"]]:
            raise SystemExit(f"{self.file} is of another model: remove it to start again")
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(kept["optimizer"])
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        with torch.no_grad():
            for ours, theirs in ((params, kept["params"]), (averages, kept["averages"])):
                for mine, its in zip(ours, theirs, strict=True):
                    mine.copy_(its)
        self.spent_before_s, self.step_before = kept["spent_s"], kept["step"]
        print(f"goes on after {self.step_before} steps and {self.spent_before_s:.0f}s", flush=True)

    def peek(self) -> int:
        """The number of steps that the parts before this one took."""
        if self.file is None or not self.file.exists():
            return 0
        return torch.load(self.file, map_location="cpu", weights_only=True, mmap=True)["step"]

    def keep(self, params, averages, optimizer, step: int, spent_s: float, *, now: bool = False) -> None:
        """Writes the file when it is time to, or `now`."""
        if self.file is None or not (now or time.perf_counter() - self._saved_at > self.save_every_s):
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        beside = self.file.with_suffix(".new")
        kept = {"params": [p.detach() for p in params], "averages": [half(a) for a in averages]}
        moments = optimizer.state_dict()
        moments["state"] = {i: {k: half(v) for k, v in state.items()} for i, state in moments["state"].items()}
        torch.save({**kept, "optimizer": moments, "step": step, "spent_s": spent_s}, beside)
        beside.replace(self.file)
        self._saved_at = time.perf_counter()

    def is_over(self, step: int, spent_s: float) -> bool:
        """Whether this part has had its time or its steps; both are counted over all parts."""
        return spent_s - self.spent_before_s >= self.limit_s or step - self.step_before >= self.limit_steps
