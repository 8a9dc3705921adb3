"""Tensor parallelism of the DiT's blocks: every rank holds all rows and its share of each product.

    to_qkv   queries, keys and values of this rank's heads        outputs cut     x -> [S, 3, N / ranks, H]
    attend   this rank's heads, as ever                                           -> [S, N / ranks, H]
    to_out   the columns that meet these heads                    inputs cut      -> [S, D], a part of the sum
    up       this rank's values and the gates that meet them      outputs cut     x -> [S, 2 F / ranks]
    down     the columns that meet them                           inputs cut      -> [S, D], a part of the sum

The two parts are summed over the ranks; norms, modulation and the residual stream are equal on all of them, so one
decision taken from them (a step cache's) is taken by all. A shard is an ordinary DiT with fewer heads and a narrower
feed-forward: chunks, fp8 and layerwise streaming see nothing else. With streaming each rank moves its own shard from
its own host memory, and nothing is gathered.

Rounding: a part rounds to the block dtype, and so does the sum; one device rounds once. With two ranks the sum of two
parts does not depend on their order. With more it is the collective's own, fixed for one topology and size, so that
two runs are equal, but rows summed in chunks may round otherwise than all of them at once.

fp8: outputs that are cut keep the scales they have on one device; inputs that are cut are quantised by what this rank
holds, a scale for its own slice of a row (and of an output's weights), which is never coarser than that of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from talkies.h3.config import DiTConfig
from talkies.model.block import Block, RefinerBlock
from talkies.model.cuts import Cut
from talkies.model.dit import PackedDiT
from talkies.model.weights import NamedTensors
from talkies.placement.ranks.groups import Group, RankGroups
from talkies.placement.ranks.mesh import Mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The share of ``rank``, of ``degree`` equal ones."""

    rank: int
    degree: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.degree, self

    def span(self, size: int, offset: int = 0) -> tuple[int, int]:
        """``(start, stop)`` of this share of ``size`` channels, which begin at ``offset`` of a tensor."""
        share = size // self.degree
        return offset + self.rank * share, offset + (self.rank + 1) * share


def shard_config(config: DiTConfig, degree: int) -> DiTConfig:
    """The sizes of one shard. Raises ``ConfigError`` when heads or feed-forward channels do not divide."""
    Mesh(tensor=degree).check(config)
    return replace(config, num_attention_heads=config.num_attention_heads // degree, ffn_dim=config.ffn_dim // degree)


def cut_of(name: str, config: DiTConfig, shard: Shard) -> Cut | None:
    """What ``shard`` holds of a tensor of the whole model; ``None``: all of it. ``config`` is the whole model's."""
    inner, ffn = config.inner_dim, config.ffn_dim
    if name.endswith("attn.to_qkv.weight"):
        return Cut(0, tuple(shard.span(inner, kind * inner) for kind in range(3)))
    if name.endswith("attn.to_out.weight"):
        return Cut(1, (shard.span(inner),))
    if name.endswith("ff.up.weight"):
        return Cut(0, (shard.span(ffn), shard.span(ffn, ffn)))
    if name.endswith("ff.down.weight"):
        return Cut(1, (shard.span(ffn),))
    return None


class ShardedTensors(NamedTensors):
    """One rank's tensors of ``source``, cut while they are read. ``config`` is the shard's."""

    def __init__(self, source: NamedTensors, shard: Shard) -> None:
        self.source, self.shard = source, shard
        self.config = shard_config(source.config, shard.degree)

    def tensor(self, name: str) -> Tensor:
        cut = cut_of(name, self.source.config, self.shard)
        return self.source.tensor(name) if cut is None else self.source.part(name, cut)


def join_ranks(dit: PackedDiT, groups: RankGroups) -> None:
    """Makes a DiT that was built from :class:`ShardedTensors` one of its group.

    From here on all ranks call the same blocks in the same order, and those of one tensor group on the same rows. The
    text refiner is cut, too: two blocks of it are as large as two of the others.
    """
    summed = _Summed(groups.tensor)
    for block in (*dit.token_refiner.blocks, *dit.blocks):
        assert isinstance(block, Block | RefinerBlock)
        if groups.mesh.tensor > 1:
            for linear in (block.attn.to_out, block.ff.down):
                linear.register_forward_hook(summed)
        groups.peers.told_of(block)


class _Summed:
    """Sums a linear's output over the ranks, in its own memory: it is new and nobody else has it yet."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(self, module: nn.Module, args: Any, part_SD: Tensor) -> Tensor:
        self._group.summed(part_SD, "a block was summed")
        return part_SD
