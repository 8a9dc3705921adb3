"""One Euler step of one modality (spec 4.2). Deterministic: eta is 0, no noise is added."""

from __future__ import annotations

from torch import Tensor

from talkies.sampling.schedule import Step


def euler_step(x: Tensor, velocity: Tensor, step: Step) -> Tensor:
    """Rows at ``sigma`` -> rows at ``sigma_next``, float32, any shape. Returns a new tensor."""
    # H3's velocity points at the data, so x0 = x + sigma * v: plus, unlike most flow models. Sigma is recovered from
    # the timestep that the DiT saw, since 1 - (1 - s) is inexact below 0.5; the ratio is taken from the grid. The
    # blend keeps bit parity (tests/parity/test_schedule.py).
    x0 = x + (1 - step.t) * velocity
    ratio = step.sigma_next / step.sigma
    return ratio * x + (1.0 - ratio) * x0
