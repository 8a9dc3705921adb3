"""Spatial tiles of the video VAE: the plan and the stitch. Part of the released result
(docs/model.md, Tiles).

H, W pixels (decode) or latents (encode); a tile is [..., h, w].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.h3.geometry import tiles_along

TILE_PIXELS = 256
MIN_OVERLAP_PIXELS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisPlan:
    """Tiles along one axis, in one unit. ``overlaps[i]`` is shared by tile i and tile i + 1."""

    starts: tuple[int, ...]
    size: int
    overlaps: tuple[int, ...]

    def scaled(self, factor: int) -> AxisPlan:
        """The same plan in units ``factor`` times larger (pixels -> latents)."""
        return AxisPlan(
            starts=tuple(s // factor for s in self.starts),
            size=self.size // factor,
            overlaps=tuple(o // factor for o in self.overlaps),
        )


def plan_axis(length: int, *, step: int, tile: int = TILE_PIXELS, min_overlap: int = MIN_OVERLAP_PIXELS) -> AxisPlan:
    """The fewest tiles that cover ``length`` pixels with every overlap at least ``min_overlap``.

    What is left over widens the overlaps round-robin from the first, ``step`` pixels (one latent) at a time.
    """
    count = tiles_along(length, tile=tile, min_overlap=min_overlap)
    if count == 1:
        return AxisPlan(starts=(0,), size=length, overlaps=())
    overlaps = [min_overlap] * (count - 1)
    spare_steps = (tile * count - min_overlap * (count - 1) - length) // step
    for i in range(spare_steps):
        overlaps[i % (count - 1)] += step
    starts = [0]
    for overlap in overlaps:
        starts.append(starts[-1] + tile - overlap)
    return AxisPlan(starts=tuple(starts), size=tile, overlaps=tuple(overlaps))


@dataclass(frozen=True, kw_only=True, slots=True)
class TilePlan:
    """Tiles of one picture: rows of ``y``, columns of ``x``, row-major."""

    y: AxisPlan
    x: AxisPlan

    @classmethod
    def of(
        cls, height: int, width: int, *, step: int, tile: int = TILE_PIXELS, min_overlap: int = MIN_OVERLAP_PIXELS
    ) -> TilePlan:
        """The plan of a ``height`` x ``width`` picture, in pixels; ``step`` is the VAE's spatial factor."""
        return cls(
            y=plan_axis(height, step=step, tile=tile, min_overlap=min_overlap),
            x=plan_axis(width, step=step, tile=tile, min_overlap=min_overlap),
        )

    def scaled(self, factor: int) -> TilePlan:
        return TilePlan(y=self.y.scaled(factor), x=self.x.scaled(factor))

    def cut(self, picture: Tensor) -> list[Tensor]:
        """[..., H, W] -> its tiles, views, row-major."""
        return [
            picture[..., top : top + self.y.size, left : left + self.x.size]
            for top in self.y.starts
            for left in self.x.starts
        ]

    def stitch(self, tiles: Sequence[Tensor]) -> Tensor:
        """Row-major tiles [..., h, w] -> the picture [..., H, W].

        Every tile owns what is left of the next tile's start. Its top is blended with the *raw* tile above, then
        its left with the *raw* tile to the left: raw, so a corner is not the blend of blends. This order is the
        release's and changes the pixels.
        """
        columns = len(self.x.starts)
        if len(tiles) == 1:
            return tiles[0]
        height, width = self.y.starts[-1] + self.y.size, self.x.starts[-1] + self.x.size
        picture = tiles[0].new_empty((*tiles[0].shape[:-2], height, width))
        for i, top in enumerate(self.y.starts):
            rows = _owned(self.y, i)
            for j, left in enumerate(self.x.starts):
                cols = _owned(self.x, j)
                tile = tiles[i * columns + j]
                out = picture[..., top : top + rows, left : left + cols]
                out.copy_(tile[..., :rows, :cols])
                if i > 0:
                    above = tiles[(i - 1) * columns + j][..., :cols]
                    cross_fade_(out, above, self.y.overlaps[i - 1], dim=-2)
                if j > 0:
                    before = tiles[i * columns + j - 1][..., :rows, :]
                    cross_fade_(out, before, self.x.overlaps[j - 1], dim=-1)
        return picture


def _owned(axis: AxisPlan, index: int) -> int:
    return axis.size - axis.overlaps[index] if index < len(axis.overlaps) else axis.size


def cross_fade_(ours: Tensor, before: Tensor, extent: int, *, dim: int) -> Tensor:
    """Fades the first ``extent`` entries of ``ours`` in from the last ``extent`` of ``before``, in place.

    Weights ``before * (1 - k/n) + ours * (k/n)``, k = 0..n-1: the first entry is wholly ``before``'s.
    """
    extent = min(before.shape[dim], extent)
    kept = min(ours.shape[dim], extent)
    if not kept:
        return ours
    shape = [1] * ours.ndim
    shape[dim] = kept
    ramp = (torch.arange(extent, device=ours.device, dtype=ours.dtype) / extent)[:kept].view(shape)
    tail = before.narrow(dim, before.shape[dim] - extent, kept)
    head = ours.narrow(dim, 0, kept)
    head.copy_(tail * (1 - ramp) + head * ramp)
    return ours
