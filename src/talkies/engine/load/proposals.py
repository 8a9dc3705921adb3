"""What a machine can do with a checkpoint when nobody said how: a plan, or what is missing, in each precision.

All tasks come first, then quality: of what fits with all partitions, else with one, the first of ``PRECISIONS`` is
taken.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from talkies.capacity import planner
from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Plan
from talkies.capacity.sizes import Sizes
from talkies.engine.config import EngineConfig
from talkies.engine.load.planning import wishes_of
from talkies.engine.options import OPTIONS
from talkies.errors import ConfigError

# quantization and text_quantization of the engine, the exact ones first.
Method = Literal["none", "fp8"]
PRECISIONS: tuple[tuple[Method, Method], ...] = (("none", "none"), ("fp8", "none"), ("fp8", "fp8"))


@dataclass(frozen=True, slots=True)
class Proposal:
    """``settings`` of the engine by option; ``plan``, or ``missing``: what the machine lacks, in a sentence."""

    settings: dict[str, str]
    num_partitions: int
    plan: Plan | None
    missing: str | None


def proposals(config: EngineConfig, sizes: Sizes, demand: Demand, machine: Hardware) -> tuple[Proposal, ...]:
    """One in each precision with all partitions of ``sizes``, and with one partition where all do not fit.

    ``demand``: the request; ``config`` says nothing of precision or placement (its budgets are in ``machine``).
    """
    return tuple(_proposals(config, sizes, demand, machine))


def _proposals(config: EngineConfig, sizes: Sizes, demand: Demand, machine: Hardware) -> Iterator[Proposal]:
    for dit, text in PRECISIONS:
        settings: dict[str, str] = {"quantization": dit, "text_quantization": text}
        if dit == "fp8" and not machine.has_fp8:
            yield Proposal(settings, sizes.num_partitions, None, "this card has no e4m3 products (needs 8.9 or later)")
            return
        precise = replace(config, quantization=dit, text_quantization=text)
        wishes = wishes_of(precise, fp8_attention=False)
        for served in (sizes.num_partitions, 1) if sizes.num_partitions > 1 else (1,):
            chosen = settings if served == sizes.num_partitions else {**settings, "task_type": "fl2va"}
            try:
                plan = planner.make_plan(replace(sizes, num_partitions=served), demand, machine, wishes)
            except ConfigError as error:
                clip = f"{demand.target.size} with {demand.target.num_frames} frames "
                yield Proposal(chosen, served, None, error.message.removeprefix(clip))
                continue
            yield Proposal(chosen, served, plan, None)
            break


def best(found: tuple[Proposal, ...]) -> Proposal | None:
    """The most exact one that fits and serves all partitions, else the most exact that fits; None where none does."""
    fitting = [proposal for proposal in found if proposal.plan is not None]
    most = max((proposal.num_partitions for proposal in fitting), default=0)
    return next((proposal for proposal in fitting if proposal.num_partitions == most), None)


def flags_of(settings: Mapping[str, Any]) -> str:
    """Options of the engine as words of a command line; those that have their default's value are left out."""
    words: list[str] = []
    for name, value in settings.items():
        row = OPTIONS[name]
        said = ",".join(value) if isinstance(value, list | tuple) else str(value)
        if said != str(row.default):
            words += [row.flag, said]
    return shlex.join(words)


def nothing_fits(found: tuple[Proposal, ...], machine: Hardware) -> ConfigError:
    """What to say where no precision fits: the one that comes nearest is the last one tried."""
    nearest = found[-1]
    return ConfigError(
        f"nothing fits {machine.name}, not even with {flags_of(nearest.settings)}: {nearest.missing}",
        hint="plan a shorter or smaller clip (--seconds, --size), more RAM (--ram-budget), or another card",
        param="gpu",
    )
