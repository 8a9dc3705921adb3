"""What one rank of several has to do, on one device, against the whole: the upper bound of what ranks can gain.

    python -m bench.parallel                            # on a GPU with 40 GiB free
    python -m bench.parallel --smoke                    # tiny sizes on a CPU

The rank with the most rows is run alone: its rows, its heads, its channels. What other ranks would send is made on the
device from what it sends itself, so shapes and work are a rank's and values are not (tests/placement/ranks compares
those over real ranks). ``efficiency`` is the whole's seconds over ranks times the rank's: 1 where nothing is lost to
smaller products and to the copies around an exchange. What crosses is counted, not sent: ``wire_s`` is the time it
would take at ``--rate``, and is not in ``efficiency``. No figure here is one of several devices.

Writes <out>/parallel-<device>.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bench.report import RESULTS, bench_device, device_name, write_result
from talkies.attention import registry
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.benchmarks.timing import free, median_of
from talkies.engine.pipeline.step import velocities
from talkies.kernels import select
from talkies.model.dit import PackedDiT
from talkies.model.runner import Runner
from talkies.model.weights import build_dit
from talkies.placement.apply import attend_of, runner_of
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, join_ranks

MESHES = (Mesh(ulysses=2), Mesh(ulysses=4), Mesh(tensor=2), Mesh(ulysses=2, tensor=2))
NVLINK = 450e9  # bytes a second that a Hopper card sends, as published


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=8, help="of the DiT; all of them are alike")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--rate", type=float, default=NVLINK, help="bytes a second from one device to others")
    options = parser.parse_args(arguments)
    device = bench_device(smoke=options.smoke)
    if device is None:
        return 2
    dtype = torch.float32 if options.smoke else torch.bfloat16
    config = fw.TINY if options.smoke else replace(fw.RELEASED, num_layers=options.blocks)
    shape = fw.SMOKE if options.smoke else fw.FULL
    source = RandomDiT(config, device, dtype)
    inputs = fw.make_inputs(source, [shape], device, dtype)
    rows, attention = inputs.layout.num_rows, registry.resolve(options.attention, device, dtype)
    metrics: dict[str, float] = {}
    checks: dict[str, bool] = {}
    whole_s = 0.0
    for mesh in (Mesh(), *MESHES):
        groups = LoneGroups(mesh)
        dit, runner = build(source, groups, attention, device)
        step = Forward(dit, runner, inputs)
        found = step()  # compiles, allocates
        finite = all(bool(x.isfinite().all()) for x in found)
        groups.crossed = 0
        step()
        crossed = groups.crossed
        seconds = median_of(step, device, repeats=options.repeats)
        if mesh.size == 1:
            whole_s, metrics["whole_s"] = seconds, seconds
            print(f"{'whole':<28} {seconds * 1e3:9.2f} ms, {rows} rows, {config.num_layers} blocks, {attention}")
            continue
        name = mesh.described().replace(" x ", "_").replace(", ", "_")
        checks[f"{name} is finite"] = finite
        checks[f"{name} sends something"] = crossed > 0
        metrics[f"{name}_rank_s"] = seconds
        metrics[f"{name}_efficiency"] = whole_s / (mesh.size * seconds)
        metrics[f"{name}_sent_mb"] = crossed / 1e6
        metrics[f"{name}_wire_s"] = crossed / options.rate
        print(
            f"{mesh.described():<28} {seconds * 1e3:9.2f} ms a rank, efficiency {metrics[f'{name}_efficiency']:.3f}, "
            f"sends {crossed / 1e6:.1f} MB: {crossed / options.rate * 1e3:.2f} ms at {options.rate / 1e9:.0f} GB/s"
        )
        del dit, runner, step
        free(device)
    stated = {"rows": rows, "blocks": config.num_layers, "attention": attention, "rate": options.rate}
    path = write_result(
        "parallel", device_name(device), shape=stated, metrics=metrics, peer={}, checks=checks, folder=options.out
    )
    print(path)
    return 0 if all(checks.values()) else 1


def build(source: RandomDiT, groups: LoneGroups, attention: str, device: torch.device) -> tuple[PackedDiT, Runner]:
    ops = select.create(select.automatic(device))
    mine: Any = groups
    attend = attend_of(registry.create(attention, ops), mine)
    tensors = ShardedTensors(source, Shard(rank=0, degree=groups.mesh.tensor))
    dit = build_dit(tensors, attend=attend, text_attend=registry.create("sdpa"), ops=ops, adaln=False)
    join_ranks(dit, mine)
    return dit, runner_of(dit, groups=mine)


class Forward:
    """The part of a step that is a rank's: embed, blocks, project, gather."""

    def __init__(self, dit: PackedDiT, runner: Runner, inputs: fw.Inputs) -> None:
        self.dit, self.runner, self.inputs = dit, runner, inputs
        self.view = dit.view(inputs.layout)
        self.refined = dit.refine_text(inputs.text, inputs.layout.text_documents)

    @torch.inference_mode()
    def __call__(self) -> tuple[Tensor, Tensor]:
        x = self.inputs
        return velocities(self.dit, self.runner, x.video, x.audio, self.refined, x.layout, self.view, x.modulation)


@dataclass
class LoneGroups:
    """The first rank of a mesh without the others: as ``RankGroups``, and counts bytes that would leave the device."""

    mesh: Mesh
    crossed: int = 0
    peers: Any = field(default_factory=lambda: SimpleNamespace(told_of=lambda module: None))
    share: int = 0

    def __post_init__(self) -> None:
        self.place = self.mesh.places[0]
        self.rows = LoneGroup(self, self.mesh.num_shares)
        self.ring, self.ulysses = LoneGroup(self, self.mesh.ring), LoneGroup(self, self.mesh.ulysses)
        self.tensor = LoneGroup(self, self.mesh.tensor)

    def total(self, values: Tensor) -> Tensor:
        """Those of this rank alone."""
        return values


class LoneGroup:
    """As ``Group``."""

    rank = 0

    def __init__(self, owner: LoneGroups, size: int) -> None:
        self._owner, self.size = owner, size

    def exchange(self, given: Tensor, to_each: Sequence[int], from_each: Sequence[int], what: str) -> Tensor:
        row = given[0].nbytes
        self._owner.crossed += sum(to_each[1:]) * row
        taken = given.new_empty(sum(from_each), *given.shape[1:])
        filled = 0
        while filled < taken.shape[0]:
            part = given[: taken.shape[0] - filled]
            taken[filled : filled + part.shape[0]] = part
            filled += part.shape[0]
        return taken

    def gathered(self, mine: Tensor, lengths: Sequence[int], what: str) -> list[Tensor]:
        self._owner.crossed += mine.nbytes * (self.size - 1)
        return [mine.repeat(2)[:length] for length in lengths]

    def summed(self, part: Tensor, what: str) -> None:
        # A ring of n sends each value twice but for one n-th.
        self._owner.crossed += 2 * part.nbytes * (self.size - 1) // self.size


if __name__ == "__main__":
    sys.exit(main())
