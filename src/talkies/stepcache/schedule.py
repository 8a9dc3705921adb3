"""Which forwards to run: dynamic programming over what it costs to leave out those between two that are run.

From whole runs of a few requests the velocity of every forward is known, and so is by how much the rows would be off
after a gap whose velocities were forecast: the forecasts' errors, each times its Euler step, summed. That is the cost
of a gap; it depends on the forward that the gap begins at, on the one that was run before it (a line needs two points)
and on the one that ends it. The schedule with the least sum of costs, for a given number of runs, is exact for these
costs; that errors of one gap change what comes after it is left out.

N forwards; costs are root mean squares over the values of a stream, whose latents have a standard deviation near 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from talkies.stepcache.extrapolate import weights

FAR = np.inf


def gram(velocities: Sequence[Tensor]) -> np.ndarray:
    """[N, N] float64: mean products of the velocities of all forwards, all that a cost depends on."""
    stacked = torch.stack([velocity.flatten().float() for velocity in velocities])
    return (stacked @ stacked.T).double().numpy() / stacked.shape[1]


def gap_costs(gram_NN: np.ndarray, sigmas: Sequence[float], order: int) -> np.ndarray:
    """Squared costs [h, i, j]: ``i`` is run, ``j`` is the next that is, ``h`` the last one before ``i`` (0 where there
    is none). ``sigmas``: N + 1 of the stream. ``order`` is 0 or 1; what no schedule has is infinite."""
    n = len(gram_NN)
    costs = np.full((n, n, n), FAR)
    for i in range(n - 1):
        for h in range(i) if i else (0,):
            points = [h, i] if order and h < i else [i]
            off = np.zeros(n)  # the rows' error as a sum of velocities
            costs[h, i, i + 1] = 0.0
            for k in range(i + 1, n - 1):
                for point, weight in zip(points, weights([sigmas[p] for p in points], sigmas[k]), strict=True):
                    off[point] += weight * (sigmas[k] - sigmas[k + 1])
                off[k] -= sigmas[k] - sigmas[k + 1]
                costs[h, i, k + 1] = max(0.0, float(off @ gram_NN @ off))
    return costs


def best_runs(costs: np.ndarray, num_runs: int) -> tuple[list[int], float]:
    """The ``num_runs`` forwards to run, the first and the last one among them, and the sum of their gaps' costs
    [h, i, j]."""
    n = len(costs)
    if not 2 <= num_runs <= n:
        raise ValueError(f"{num_runs} of {n} forwards")
    # least[h, i]: of schedules of so many runs that end with h, i.
    least = np.full((n, n), FAR)
    least[0, 1:] = costs[0, 0, 1:]
    before: list[np.ndarray] = []
    for _ in range(num_runs - 2):
        sums = least[:, :, None] + costs  # [h, i, j]
        before.append(sums.argmin(axis=0))
        least = sums.min(axis=0)  # [i, j]
    last = n - 1
    previous = int(least[:, last].argmin())
    total = float(least[previous, last])
    runs = [last, previous]
    for came_from in reversed(before):
        runs.append(int(came_from[runs[-1], runs[-2]]))
    return sorted(runs), total
