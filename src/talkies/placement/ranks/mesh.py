"""How the ranks of one engine divide a forward: by rows (ring x ulysses) and by channels (tensor).

    ring     rows of the sequence. Each rank keeps its queries; keys and values go round (``ring.py``)
    ulysses  rows of the sequence outside attention, heads inside it: one exchange on either side (``ulysses.py``)
    tensor   heads and feed-forward channels of every product; a sum after each (``tensor_parallel.py``)

Neighbours in rank share most traffic: tensor varies fastest, then ulysses, then ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Literal

from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig

Axis = Literal["rows", "ring", "ulysses", "tensor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one rank stands."""

    ring: int
    ulysses: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of the three axes; their product is the number of ranks."""

    ring: int = 1
    ulysses: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """Ranks."""
        return self.num_shares * self.tensor

    @property
    def num_shares(self) -> int:
        """Into which rows are cut: ranks that differ in ``tensor`` alone have the same rows."""
        return self.ring * self.ulysses

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Of every rank, in order."""
        axes = product(range(self.ring), range(self.ulysses), range(self.tensor))
        return tuple(Place(ring=r, ulysses=u, tensor=t) for r, u, t in axes)

    def share_of(self, rank: int) -> int:
        """Which share of the rows the rank has."""
        place = self.places[rank]
        return place.ring * self.ulysses + place.ulysses

    def groups(self, axis: Axis) -> Iterator[list[int]]:
        """The ranks that differ along ``axis`` alone, as lists in its order; ``rows`` is ring and ulysses together."""
        rest: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(self.places):
            key = {
                "rows": (place.tensor,),
                "ring": (place.ulysses, place.tensor),
                "ulysses": (place.ring, place.tensor),
                "tensor": (place.ring, place.ulysses),
            }[axis]
            rest.setdefault(key, []).append(rank)
        yield from rest.values()

    def check(self, config: DiTConfig, *, head_groups: int = 1) -> None:
        """Raises ``ConfigError`` with the degrees that are possible where one does not divide ``config``."""
        heads, ffn = config.num_attention_heads, config.ffn_dim
        possible = [n for n in range(1, heads + 1) if heads % n == 0 and ffn % n == 0]
        if self.tensor not in possible:
            wrong = f"{heads} heads" if self.tensor < 1 or heads % self.tensor else f"{ffn} feed-forward channels"
            raise _refused("tensor_parallel", self.tensor, wrong, possible)
        here = heads // self.tensor
        if here % (head_groups * self.ulysses):
            of = f"{heads} heads" if self.tensor == 1 else f"the {here} heads that tensor_parallel={self.tensor} leaves"
            if head_groups > 1 and here % self.ulysses == 0:
                of = f"the heads of one of head_groups={head_groups} turns"
            fits = [n for n in range(1, here + 1) if here % (n * head_groups) == 0]
            raise _refused("ulysses_degree", self.ulysses, of, fits)

    def described(self) -> str:
        """``2 x ulysses, 2 x tensor``: of those axes that are divided."""
        axes = (("ring", self.ring), ("ulysses", self.ulysses), ("tensor", self.tensor))
        return ", ".join(f"{n} x {name}" for name, n in axes if n > 1) or "one rank"


ONE = Mesh()


def _refused(param: str, degree: int, what: str, possible: list[int]) -> ConfigError:
    return ConfigError(
        f"{param}={degree} does not divide {what}", hint="use " + ", ".join(map(str, possible)), param=param
    )


@lru_cache(256)
def share_bounds(num_rows: int, num_shares: int) -> tuple[int, ...]:
    """``num_shares + 1`` bounds of contiguous shares that differ by one row at most: nothing is padded.

    58,758 rows over 4 are 14,690, 14,690, 14,689 and 14,689.
    """
    base, more = divmod(num_rows, num_shares)
    bounds = [0]
    for share in range(num_shares):
        bounds.append(bounds[-1] + base + (share < more))
    return tuple(bounds)


def share_lengths(num_rows: int, num_shares: int) -> list[int]:
    """Rows of every share."""
    return [b - a for a, b in pairwise(share_bounds(num_rows, num_shares))]
