"""Euler steps (docs/model.md, Euler step). Deterministic: eta is 0, no noise is added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from talkies.sampling.schedule import Step


def euler_step(x: Tensor, velocity: Tensor, step: Step) -> Tensor:
    """Rows at ``sigma`` -> rows at ``sigma_next``, float32, any shape. Returns a new tensor."""
    return euler_steps([x], [velocity], [step])[0]


def euler_steps(xs: list[Tensor], velocities: list[Tensor], steps: Sequence[Step]) -> Sequence[Tensor]:
    """:func:`euler_step` of many tensors, each with a step of its own. Five launches, however many they are.

    H3's velocity points at the data, so ``x0 = x + sigma * v``: plus, unlike most flow models; then ``x`` and ``x0``
    are blended. Each product and each sum rounds to float32 by itself, so nothing here may be fused into one
    multiply-add: the blend keeps bit parity (tests/parity/test_schedule.py).
    """
    to_data, keep, take = zip(*(step.factors for step in steps), strict=True)
    x0s = torch._foreach_mul(velocities, to_data)
    torch._foreach_add_(x0s, xs)
    torch._foreach_mul_(x0s, take)
    moved = torch._foreach_mul(xs, keep)
    torch._foreach_add_(moved, x0s)
    return moved
