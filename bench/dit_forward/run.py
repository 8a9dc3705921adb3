"""What the parts of bench/dit_forward share: the run, what it found, and the file that it becomes."""

from __future__ import annotations

import json
import math
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.report import device_name, write_result
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import Clock
from talkies.h3.config import DiTConfig
from talkies.placement.quantize import QuantizeConfig

FP8 = QuantizeConfig(method="fp8")
EXACT = ("fa3", "cudnn", "sdpa")
FASTEST = ("fa3-fp8", *EXACT)


class CheckFailed(Exception):
    """A check failed: what it watches is not reported."""


@dataclass
class Run:
    """What the parts share, and what they found."""

    device: torch.device
    dtype: torch.dtype
    config: DiTConfig
    shape: fw.Shape
    repeats: int
    kernels: str
    backends: list[str]
    out: Path
    clock: Clock
    metrics: dict[str, float] = field(default_factory=dict)
    peer: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # of full-size forwards, on the CPU
    kernel_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    inputs_: fw.Inputs | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def source(self) -> RandomDiT:
        return RandomDiT(self.config, self.device, self.dtype)

    def inputs(self) -> fw.Inputs:
        if self.inputs_ is None:
            self.inputs_ = fw.make_inputs(self.source, [self.shape], self.device, self.dtype)
        return self.inputs_

    def best(self, names: tuple[str, ...] = EXACT) -> str:
        """The fastest backend of ``names`` that is here; of exact ones when left out."""
        return next(name for name in names if name in self.backends)

    def say(self, text: str) -> None:
        print(f"[{self.clock.spent_s:5.0f} s] {text}", flush=True)

    def metric(self, name: str, value: float, unit: str = "s", *, peer: bool = False) -> None:
        (self.peer if peer else self.metrics)[name] = value
        self.say(f"  {name:<34} {value:>12.6g} {unit}")

    def check(self, name: str, good: bool, detail: str) -> None:
        self.checks[name] = bool(good)
        self.say(f"  {'ok' if good else 'NOT OK':<6} {name}: {detail}")

    def require(self, name: str, good: bool, detail: str) -> None:
        """As :meth:`check`; what comes after a failed one is not measured: raises :class:`CheckFailed`."""
        self.check(name, good, detail)
        if not good:
            raise CheckFailed(f"{name}: {detail}")

    def trusted(self, *names: str) -> None:
        """Raises :class:`CheckFailed` where part ``checks`` found one of these backends or precisions wrong."""
        kinds = ("parity", "repeats", "chunked", "emulation")
        for check, good in self.checks.items():
            kind, _, rest = check.partition("_")
            if not good and kind in kinds and rest.partition("_")[2] in names:
                raise CheckFailed(f"{check} failed, so nothing of it is timed")

    def withdraw(self, prefix: str, why: str) -> None:
        """Takes back the figures whose names begin with ``prefix``: a later check found them worthless."""
        for name in [name for name in self.metrics if name.startswith(prefix)]:
            del self.metrics[name]
        self.notes.append(f"{prefix}*: withdrawn, {why}")
        self.say(f"  withdrawn: {prefix}*, {why}")


class Reported:
    """A part, or a part of one: what it raises is printed and noted, and the rest goes on."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        where = "".join(traceback.format_exception(kind, error, trace)[-3:])
        self.run.notes.append(f"{self.name} failed: {type(error).__name__}: {str(error)[:300]}")
        self.run.say(f"  FAILED {self.name}\n{where}")
        return True


def write(run: Run) -> None:
    metrics = {k: v for k, v in run.metrics.items() if math.isfinite(v)}
    layout = run.inputs().layout
    shape = {
        "rows": layout.num_rows,
        "text": layout.num_text,
        "audio": layout.num_audio_rows,
        "video": layout.num_video_rows,
        "blocks": run.config.num_layers,
        "dtype": str(run.dtype).removeprefix("torch."),
        "kernels": run.kernels,
        "backends": run.backends,
        "repeats": run.repeats,
        "notes": run.notes,
    }
    name = device_name(run.device)
    path = write_result(
        "dit_forward", name, shape=shape, metrics=metrics, peer=run.peer, checks=run.checks, folder=run.out
    )
    details = {"kernel_seconds": run.kernel_seconds, "all_metrics": run.metrics}
    path.with_suffix(".details.json").write_text(json.dumps(details, indent=1) + "\n")
