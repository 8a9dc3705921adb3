"""Ulysses: each rank has some rows of everything but attention, and in attention all rows of some heads.

    q, k, v of my rows, all heads  -> one exchange of all three -> of all rows, my heads
    attend, as on one device
    my heads of all rows           -> one exchange              -> all heads of my rows

Shares are uneven where rows do not divide, so nothing is padded; padding that a layout has itself arrives at the end of
the sequence and is cut before the backend, as on one device. Documents and exact spans speak of the whole sequence,
which is what the backend sees: it computes the same heads as on one device, row for row.

U ranks, S rows of the sequence, R of this rank, N heads, H channels a head.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from talkies.attention.base import Attend, Documents
from talkies.placement.ranks.groups import Group, RankGroups
from talkies.placement.ranks.mesh import share_lengths
from talkies.placement.ranks.ring import RingAttend


class UlyssesAttend:
    """``attend`` [R, N, H] -> [R, N, H] over ranks; ``inner`` attends over the rows of the exchange.

    A backend's own way from the projection on is not taken: it would need the rotary table of other ranks' rows.
    """

    def __init__(self, inner: Attend, groups: RankGroups) -> None:
        self._inner, self._groups = inner, groups

    def __call__(self, q_SNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, documents: Documents | None) -> Tensor:
        """All heads of this rank's rows, before and after."""
        assert documents is not None, "a share of rows does not say how long the sequence is"
        mesh, place, group = self._groups.mesh, self._groups.place, self._groups.ulysses
        every = share_lengths(documents.num_rows, mesh.num_shares)
        lengths = every[place.ring * mesh.ulysses : (place.ring + 1) * mesh.ulysses]
        assert q_SNH.shape[0] == lengths[place.ulysses], (tuple(q_SNH.shape), documents)
        q, k, v = to_heads((q_SNH, k_SNH, v_SNH), group, lengths)
        out_SNH = self._inner(q, k, v, documents)
        del q, k, v
        return to_rows(out_SNH, group, lengths)


def to_heads(parts: Sequence[Tensor], group: Group, lengths: list[int]) -> Sequence[Tensor]:
    """All heads of my rows -> my heads of all rows, each of ``parts`` [R, N, H] -> [S, N / U, H]: one exchange.

    What comes back are views of one [S, parts, N / U, H], the layout of a projection.
    """
    if group.size == 1:
        return parts
    rows, heads, head_dim = parts[0].shape
    mine = heads // group.size
    given = parts[0].new_empty(group.size, rows, len(parts), mine, head_dim)
    for i, part in enumerate(parts):
        given[:, :, i] = part.unflatten(1, (group.size, mine)).transpose(0, 1)
    taken = group.exchange(given.flatten(0, 1), [rows] * group.size, lengths, "heads were exchanged")
    return taken.unbind(1)


def to_rows(out_SNH: Tensor, group: Group, lengths: list[int]) -> Tensor:
    """My heads of all rows -> all heads of my rows, [S, N / U, H] -> [R, N, H]."""
    if group.size == 1:
        return out_SNH
    rows = lengths[group.rank]
    taken = group.exchange(out_SNH.contiguous(), lengths, [rows] * group.size, "rows were exchanged")
    return taken.view(group.size, rows, *out_SNH.shape[1:]).transpose(0, 1).flatten(1, 2)


def attend_across(attend: Attend, groups: RankGroups | None) -> Attend:
    """What a rank's blocks call: ``attend`` itself where rows are not cut. Raises ``ConfigError`` for a ring over a
    backend that does not say how large its softmax was."""
    if groups is None or groups.mesh.num_shares == 1:
        return attend
    return UlyssesAttend(RingAttend(attend, groups) if groups.mesh.ring > 1 else attend, groups)
