"""Data parallel training over the GPUs of one host: `torchrun --nproc-per-node N -m training.run ...`.

Every rank draws its own clips and batches; gradients are averaged as one flat tensor. Canvas, length and keyframes
differ between the ranks of a step, so a parameter may have a gradient on some of them only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join(device: str) -> Ranks:
    """The ranks that torchrun's environment names; joins their process group when there are several."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    rank = int(os.environ["RANK"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return Ranks(rank, count)


@torch.no_grad()
def share_start(model: nn.Module, ranks: Ranks) -> None:
    """All ranks begin with the first one's parameters."""
    if ranks.count > 1:
        for p in model.parameters():
            dist.broadcast(p, 0)


@torch.no_grad()
def average_gradients(params: list[nn.Parameter], ranks: Ranks) -> None:
    if ranks.count == 1:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
    dist.all_reduce(flat)
    flat /= ranks.count
    for p, grad in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad = grad.view_as(p)


def agree(value: float, device: str, ranks: Ranks) -> float:
    """The first rank's value. Waits for the device, so not for every step."""
    if ranks.count == 1:
        return value
    shared: Tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)
