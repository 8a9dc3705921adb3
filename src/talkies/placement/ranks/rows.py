"""Rows over ranks: which of them a rank embeds, runs and projects, and how what it projects becomes everybody's.

Hidden states never cross as a whole: outside attention a rank needs no other's rows, and what is gathered after a
forward are projected rows, a hundred values wide.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from talkies.h3.spans import Spans, SpansShare, Stream
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import share_bounds


class RowSharing:
    """Contiguous shares of the sequence, padding included, that differ by one row at most."""

    def __init__(self, groups: RankGroups) -> None:
        self._groups = groups
        self._known: dict[Spans, list[SpansShare]] = {}

    def share(self, spans: Spans) -> SpansShare:
        return self._shares(spans)[self._groups.share]

    def _shares(self, spans: Spans) -> list[SpansShare]:
        """Of all ranks; kept for the layout of the last forwards."""
        if spans not in self._known:
            if len(self._known) >= 16:
                self._known.pop(next(iter(self._known)))
            bounds = share_bounds(spans.total_rows, self._groups.mesh.num_shares)
            self._known[spans] = [spans.share(a, b) for a, b in pairwise(bounds)]
        return self._known[spans]

    def gathered(self, video_rows: Tensor, audio_rows: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        shares = self._shares(spans)
        widths = {Stream.VIDEO: video_rows.shape[1], Stream.AUDIO: audio_rows.shape[1]}
        counts = [[share.count(stream) * width for stream, width in widths.items()] for share in shares]
        mine = torch.cat((video_rows.flatten(), audio_rows.flatten()))
        each = self._groups.rows.gathered(mine, [sum(pair) for pair in counts], "rows were gathered")
        split = [flat.split(pair) for flat, pair in zip(each, counts, strict=True)]
        video, audio = (torch.cat([parts[i] for parts in split]) for i in range(2))
        return video.view(-1, video_rows.shape[1]), audio.view(-1, audio_rows.shape[1])
