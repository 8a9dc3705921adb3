"""Ring attention: queries stay, keys and values of the other ranks come by in turn, and their parts are merged.

A part gives its log-sum-exp, and parts of one row are merged by it in float32 (``attention/partial.py``): the result is
that of one softmax but for rounding. Documents are honoured: a row meets keys of its own document alone, wherever the
cuts between ranks lie, and structural padding meets nothing.

S rows of this rank's place in the ring, K of another one's, N heads, H channels a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.attention.base import Attend, Documents, Trimmed
from talkies.attention.partial import Merged, partial_of
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import share_bounds


class RingAttend:
    """[S, N, H] -> [S, N, H] over the ring. Raises ``ConfigError`` for a backend without log-sum-exp."""

    def __init__(self, attend: Attend, groups: RankGroups) -> None:
        self._partial, self._groups = partial_of(attend.name if isinstance(attend, Trimmed) else "?"), groups

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        assert documents is not None
        mesh, ring = self._groups.mesh, self._groups.ring
        every = share_bounds(documents.num_rows, mesh.num_shares)
        spans = [(every[i * mesh.ulysses], every[(i + 1) * mesh.ulysses]) for i in range(mesh.ring)]
        mine = spans[ring.rank]
        found = Merged(q_SNH)
        kv_K2NH = torch.stack((k_SNH, v_SNH), dim=1)
        for turn in range(mesh.ring):
            source = (ring.rank - turn) % mesh.ring
            # Every rank adds in an order of its own, which is the same each time.
            self._see(found, q_SNH, kv_K2NH, mine, spans[source], documents)
            if turn + 1 < mesh.ring:
                kv_K2NH = self._next(kv_K2NH, spans, (source - 1) % mesh.ring)
        return found.rows(q_SNH.dtype)

    def _next(self, kv_K2NH: Tensor, spans: list[tuple[int, int]], coming: int) -> Tensor:
        """What I have goes to the rank after me; what the one before me has comes, rows of place ``coming``."""
        ring = self._groups.ring
        to_each, from_each = [0] * ring.size, [0] * ring.size
        to_each[(ring.rank + 1) % ring.size] = kv_K2NH.shape[0]
        start, stop = spans[coming]
        from_each[(ring.rank - 1) % ring.size] = stop - start
        return ring.exchange(kv_K2NH, to_each, from_each, "keys went round")

    def _see(
        self,
        found: Merged,
        q_SNH: Tensor,
        kv_K2NH: Tensor,
        queries: tuple[int, int],
        keys: tuple[int, int],
        documents: Documents,
    ) -> None:
        """Adds what my queries find in these keys, a document at a time."""
        for start, stop in documents:
            a, b = (max(start, queries[0]) - queries[0], min(stop, queries[1]) - queries[0])
            c, d = (max(start, keys[0]) - keys[0], min(stop, keys[1]) - keys[0])
            if a < b and c < d:
                found.add(a, b, *self._partial(q_SNH[a:b], kv_K2NH[c:d, 0], kv_K2NH[c:d, 1]))
