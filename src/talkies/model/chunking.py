"""How a block cuts its work to need less memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from talkies.errors import ConfigError

ROW_MULTIPLE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunking:
    """``mlp_rows``: rows that go through the feed-forward at a time (``None``: all). ``head_groups``: attention
    computes its heads in so many turns; the queries, keys and values of one turn are alive at once."""

    mlp_rows: int | None = None
    head_groups: int = 1

    def __post_init__(self) -> None:
        if self.mlp_rows is not None and self.mlp_rows < ROW_MULTIPLE:
            raise ConfigError(f"mlp_rows={self.mlp_rows} is too few", hint=f"{ROW_MULTIPLE} or more", param="mlp_rows")
        if self.head_groups < 1:
            raise ConfigError(f"head_groups={self.head_groups} is too few", hint="1 or more", param="head_groups")


WHOLE = Chunking()


def chunks_of(num_rows: int, at_most: int | None) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of nearly equal chunks, multiples of 64 rows where the last one stays long enough.

    Never a short tail: a matrix product of one row takes another path and rounds differently on a CPU, and on a GPU
    a few rows cost as much as a tile of them.
    """
    if at_most is None or num_rows <= at_most:
        yield 0, num_rows
        return
    count = -(-num_rows // (at_most // ROW_MULTIPLE * ROW_MULTIPLE))
    size = -(-num_rows // count)
    size = -(-size // ROW_MULTIPLE) * ROW_MULTIPLE
    if num_rows - (count - 1) * size >= ROW_MULTIPLE:
        bounds = [min(i * size, num_rows) for i in range(count + 1)]
    else:
        bounds = [i * num_rows // count for i in range(count + 1)]
    yield from pairwise(bounds)
