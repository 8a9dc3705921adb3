"""AdaLN: timesteps to modulation rows, folded into a table or evaluated step by step (docs/model.md, AdaLN table).

AdaLN projections are 39 % of the released weights and see only a handful of timesteps, so for a whole schedule they
are a table, not weights. A (timestep, modality) pair is always evaluated alone, in a group of ``GROUP`` equal rows:
a matrix product's rounding depends on its row count, so this makes an entry a pure function of its pair, and the
table equal to the unfolded evaluation bit for bit, whatever else the schedule or the batch holds.

E entries, B blocks, D hidden; 6 = shift, scale, gate of attention, then of the feed-forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.h3.config import NUM_MODALITIES, DiTConfig
from talkies.h3.timesteps import StepPlan
from talkies.kernels.runs import RowRuns

GROUP = 4
MAX_PERIOD = 10_000.0


class Affine(NamedTuple):
    """The weight [N, K] and bias [N] of a projection: values, where ``linear.Linear`` is a module."""

    weight: Tensor
    bias: Tensor


class AdaLNWeights(Protocol):
    """Who can hand out the AdaLN weights: a resident DiT, or a checkpoint reader that reads one block at a time."""

    @property
    def config(self) -> DiTConfig: ...

    def time_embedder_weights(self) -> tuple[Affine, Affine]: ...

    def block_adaln(self, block: int) -> Affine: ...

    def output_adaln(self) -> Affine: ...


def timestep_embedding(timesteps_M: Tensor, freq_dim: int) -> Tensor:
    """[M] in 0..1, unscaled -> [M, freq_dim] float32: cosines, then sines."""
    half = freq_dim // 2
    steps = torch.arange(half, dtype=torch.float32, device=timesteps_M.device)
    frequencies = torch.exp(-math.log(MAX_PERIOD) * steps / half)
    angles = timesteps_M.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@dataclass(frozen=True, slots=True)
class BlockModulation:
    """One block's parameters: ``params`` [E, 6, D] and the entry of every row."""

    params: Tensor
    runs: RowRuns

    def __getitem__(self, index: int) -> Tensor:
        """[E, D] of one parameter: 0..2 attention shift, scale, gate; 3..5 feed-forward shift, scale, gate."""
        return self.params[:, index]


@dataclass(frozen=True, slots=True)
class StepModulation:
    """Everything one forward needs to modulate its rows."""

    params: Tensor  # [E, B, 6, D], block dtype
    runs: RowRuns  # rows -> E
    output: Tensor  # [T, 2, D]: shift, scale of the output norm, one entry a timestep (no modality axis)
    output_runs: RowRuns  # rows -> T

    def block(self, block: int) -> BlockModulation:
        return BlockModulation(self.params[:, block], self.runs)

    def cut(self, start: int, stop: int) -> StepModulation:
        """The share of rows ``start .. stop``."""
        return replace(self, runs=self.runs.cut(start, stop), output_runs=self.output_runs.cut(start, stop))

    def to(self, device: torch.device) -> StepModulation:
        """The same values elsewhere; the copy is asynchronous from pinned memory."""
        params = self.params.to(device, non_blocking=True)
        return replace(self, params=params, output=self.output.to(device, non_blocking=True))


class ModulationTable:
    """Modulation of a whole schedule. Immutable; shared by every request whose plan needs the same pairs."""

    def __init__(
        self, pairs: Sequence[tuple[float, int]], params: Tensor, output: Tensor, steps: Sequence[StepPlan]
    ) -> None:
        self.pairs = tuple(pairs)
        self.params = params  # [E, B, 6, D]: an entry is contiguous, so a step is a few long copies
        self.output = output  # [T, 2, D], one row per distinct timestep of ``pairs``
        self.steps = _shared_runs(steps)
        self._entry = {pair: i for i, pair in enumerate(self.pairs)}
        self._timestep = {t: i for i, t in enumerate(sorted({t for t, _ in self.pairs}))}

    @property
    def key(self) -> tuple[tuple[float, int], ...]:
        """Equal keys (and equal weights) mean equal tables."""
        return self.pairs

    @property
    def num_bytes(self) -> int:
        return self.params.nbytes + self.output.nbytes

    def covers(self, steps: Sequence[StepPlan]) -> bool:
        return all(pair in self._entry for step in steps for pair in step.pairs)

    def rebind(self, steps: Sequence[StepPlan]) -> ModulationTable:
        """The same table for another request's plan; the plan's pairs must be covered."""
        assert self.covers(steps), "the plan needs pairs that the table lacks"
        return ModulationTable(self.pairs, self.params, self.output, steps)

    def step(self, index: int) -> StepModulation:
        """Modulation of forward ``index`` of the plan."""
        return self.at(self.steps[index])

    @property
    def all_steps_bytes(self) -> int:
        """What :meth:`all_steps` holds: an entry counts once in every step that uses it."""
        num_params = sum(len(plan.pairs) for plan in self.steps)
        num_output = sum(len(plan.timesteps) for plan in self.steps)
        return num_params * self.params[0].nbytes + num_output * self.output[0].nbytes

    def all_steps(self) -> list[StepModulation]:
        """:meth:`step` of every forward, gathered at once: each is a view into what all share."""
        entries = [self._entry[pair] for plan in self.steps for pair in plan.pairs]
        times = [self._timestep[t] for plan in self.steps for t in plan.timesteps]
        params = self.params[entries].split([len(plan.pairs) for plan in self.steps])
        output = self.output[times].split([len(plan.timesteps) for plan in self.steps])
        return [
            StepModulation(p, plan.rows, o, plan.output_rows)
            for p, o, plan in zip(params, output, self.steps, strict=True)
        ]

    def entries(self, plan: StepPlan) -> tuple[list[Tensor], list[Tensor]]:
        """Views of what :meth:`at` would gather: [B, 6, D] for each pair, [2, D] for each timestep."""
        params = [self.params[self._entry[pair]] for pair in plan.pairs]
        return params, [self.output[self._timestep[t]] for t in plan.timesteps]

    def moved(self, device: torch.device, *, pin: bool) -> ModulationTable:
        """The same table elsewhere; ``pin`` for host memory that a GPU can read while it works."""
        tensors = [t.to(device) for t in (self.params, self.output)]
        params, output = (t.pin_memory() for t in tensors) if pin else tensors
        return ModulationTable(self.pairs, params, output, self.steps)

    def at(self, plan: StepPlan) -> StepModulation:
        """Modulation of any covered forward, a co-batched one included."""
        entries = torch.tensor([self._entry[pair] for pair in plan.pairs], device=self.params.device)
        times = torch.tensor([self._timestep[t] for t in plan.timesteps], device=self.output.device)
        return StepModulation(
            self.params.index_select(0, entries), plan.rows, self.output.index_select(0, times), plan.output_rows
        )


def build_table(
    weights: AdaLNWeights, steps: Sequence[StepPlan], device: torch.device | None = None
) -> ModulationTable:
    """The table of all (timestep, modality) pairs in ``steps``, read one block at a time.

    Evaluated on ``device`` (where the weights are, if ``None``) in the dtype of the AdaLN weights, and left there;
    after it they are not needed for this schedule. At most one block's matrix is on the device at a time.
    """
    pairs = sorted({pair for step in steps for pair in step.pairs})
    params, output = _evaluate(weights, pairs, device)
    return ModulationTable(pairs, params, output, steps)


def _shared_runs(steps: Sequence[StepPlan]) -> tuple[StepPlan, ...]:
    """The same plans; equal runs become one object, so that what is derived from them on a device is made once."""
    seen: dict[RowRuns, RowRuns] = {}
    return tuple(
        replace(
            step,
            rows=seen.setdefault(step.rows, step.rows),
            output_rows=seen.setdefault(step.output_rows, step.output_rows),
        )
        for step in steps
    )


def unfolded(weights: AdaLNWeights, plan: StepPlan) -> StepModulation:
    """One forward's modulation straight from the weights: what the table must equal bit for bit."""
    params, output = _evaluate(weights, plan.pairs, None)
    return StepModulation(params, plan.rows, output, plan.output_rows)


# (runs, number of entries) of each member -> their joint runs
JointRuns = dict[tuple[tuple[RowRuns, int], ...], RowRuns]


def join_modulations(steps: Sequence[StepModulation], known: JointRuns | None = None) -> StepModulation:
    """Modulation of the joint sequence: each request's own entries, one after another, bit for bit.

    ``known`` keeps joint runs, and with them what kernels made of them on the device, from step to step.
    """
    known = {} if known is None else known
    return StepModulation(
        params=torch.cat([step.params for step in steps]),
        runs=_join_runs(tuple((step.runs, step.params.shape[0]) for step in steps), known),
        output=torch.cat([step.output for step in steps]),
        output_runs=_join_runs(tuple((step.output_runs, step.output.shape[0]) for step in steps), known),
    )


def _join_runs(parts: tuple[tuple[RowRuns, int], ...], known: JointRuns) -> RowRuns:
    """``(runs, number of entries)`` of each request -> runs over the concatenated entries."""
    if parts in known:
        return known[parts]
    joint: list[tuple[int, int]] = []
    offset = 0
    for runs, num_entries in parts:
        joint.extend((stop - start, entry + offset) for start, stop, entry in runs)
        offset += num_entries
    known[parts] = RowRuns.of(joint)
    return known[parts]


def _evaluate(
    weights: AdaLNWeights, pairs: Sequence[tuple[float, int]], device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """``params`` [E, B, 6, D] for sorted ``pairs`` and ``output`` [T, 2, D] for their sorted distinct timesteps."""
    config = weights.config
    first, second = (_moved(affine, device) for affine in weights.time_embedder_weights())
    activations = {t: _activation((first, second), t, config.freq_dim) for t in sorted({t for t, _ in pairs})}
    head = _moved(weights.output_adaln(), device)
    output = torch.stack([_apply(a, head.weight, head.bias).view(2, -1) for a in activations.values()])
    params = output.new_empty(len(pairs), config.num_layers, 6, config.hidden_size)
    for block in range(config.num_layers):
        adaln = _moved(weights.block_adaln(block), device)
        # Modality is the outer axis of the outputs: a pair needs a third of the rows of the matrix.
        weight_by_tag = adaln.weight.unflatten(0, (NUM_MODALITIES, -1))
        bias_by_tag = adaln.bias.unflatten(0, (NUM_MODALITIES, -1))
        for entry, (t, tag) in enumerate(pairs):
            params[entry, block] = _apply(activations[t], weight_by_tag[tag], bias_by_tag[tag]).view(6, -1)
    return params, output


def _moved(affine: Affine, device: torch.device | None) -> Affine:
    return affine if device is None else Affine(affine.weight.to(device), affine.bias.to(device))


def _activation(time_embedder: tuple[Affine, Affine], t: float, freq_dim: int) -> Tensor:
    """``silu(temb)`` of one timestep, float32, [GROUP, time_embed_dim] of equal rows."""
    first, second = time_embedder
    group = torch.full((GROUP,), t, dtype=torch.float32, device=first.weight.device)
    hidden = F.silu(F.linear(timestep_embedding(group, freq_dim), *first))
    # Every consumer activates the embedding a second time, in float32, before it rounds to the block dtype.
    return F.silu(F.linear(hidden, *second))


def _apply(activation: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(activation.to(weight.dtype), weight, bias)[0]
