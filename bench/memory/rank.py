"""One of two ranks: what it was told, what it has, and how it measures together with the other."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from bench.memory.curve import Step
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import GIB, free, synchronize
from talkies.h3.config import DiTConfig
from talkies.model.dit import PackedDiT
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.ranks.peers import Peers
from talkies.placement.stream.layerwise import to_host

WORLD = 2
NEEDS_S = {"tp_fp8": 40, "tp_bf16": 50}
DTYPE = torch.bfloat16
QUANTIZE = {"fp8": QuantizeConfig(method="fp8"), "bf16": QuantizeConfig()}


@dataclass(frozen=True)
class Task:
    """What crosses to the ranks."""

    port: int
    parts: tuple[str, ...]
    config: DiTConfig
    shape: fw.Shape
    device: str  # cuda or cpu
    kernels: str
    attention: str
    until: float  # of time.time()


@dataclass
class Rank:
    """One of them: its device, its group, what it has found. Names that start with ``check `` are checks."""

    task: Task
    device: torch.device
    peers: Peers
    source: RandomDiT
    inputs: fw.Inputs
    found: dict[str, float] = field(default_factory=dict)
    resident: dict[str, fw.Measured] = field(default_factory=dict)  # of one GPU, by precision

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def make(self, source: Any, precision: str) -> PackedDiT:
        task = self.task
        return fw.make_dit(
            source, self.device, DTYPE, attend=task.attention, kernels=task.kernels, quantize=QUANTIZE[precision]
        )

    def step(self, dit: PackedDiT) -> Step:
        """The refiner has done its work then, and leaves as in an engine."""
        step = Step(dit, self.inputs)
        for block in dit.token_refiner.blocks:
            to_host(block, pin=False)
        free(self.device)
        return step

    def together(self) -> None:
        """Both devices are idle and both ranks begin."""
        synchronize(self.device)
        dist.barrier()

    def measured(self, step: Step) -> fw.Measured:
        self.together()
        return fw.measured(step, self.device, repeats=1)

    def one_rank(self, precision: str) -> tuple[PackedDiT | None, fw.Measured]:
        """The resident forward; the DiT, too, the first time."""
        if precision in self.resident:
            return None, self.resident[precision]
        dit = self.make(self.source, precision)
        self.resident[precision] = self.measured(self.step(dit))
        return dit, self.resident[precision]

    def note(self, name: str, value: float) -> None:
        self.found[name] = float(value)
        if self.peers.rank == 0:
            print(f"    {name:<44} {value:.6g}", flush=True)

    def check(self, name: str, good: bool) -> bool:
        self.note(f"check {name}", good)
        return bool(good)

    def same_on_all(self, outputs: list[torch.Tensor]) -> bool:
        digest = hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in outputs)).hexdigest()
        found: list[Any] = [None] * WORLD
        dist.all_gather_object(found, digest)
        return len(set(found)) == 1

    def card_gib(self) -> float:
        """All that is taken on the card: the allocator's reserve, the CUDA context, NCCL's buffers."""
        if not self.on_gpu:
            return 0.0
        left, total = torch.cuda.mem_get_info(self.device)
        return (total - left) / GIB

    def has_time(self, part: str) -> bool:
        """Rank 0 decides."""
        answer: list[object] = [not self.on_gpu or self.task.until - time.time() > NEEDS_S[part]]
        dist.broadcast_object_list(answer, src=0)
        return bool(answer[0])


def equal(a: fw.Measured, b: fw.Measured) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))
