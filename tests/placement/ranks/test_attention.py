"""Attention whose rows lie on several ranks is the attention of one, and no more crosses than must."""

from __future__ import annotations

import pytest
import torch

from talkies.attention.base import Documents, Trimmed
from talkies.attention.sdpa import sdpa
from talkies.placement.ranks.mesh import Mesh, share_bounds
from talkies.placement.ranks.ulysses import attend_across
from tests.placement.ranks.threads import groups_of, together

ROWS, HEADS, CHANNELS = 23, 4, 8
ATTEND = Trimmed(sdpa, "sdpa")
DOCUMENTS = {
    "one": Documents((0, ROWS), ROWS),
    "padded": Documents((0, ROWS - 2), ROWS),
    "cut inside shares": Documents((0, 3, 13, ROWS - 1), ROWS),
    "one far shorter than a share": Documents((0, ROWS - 1, ROWS), ROWS),
}
MESHES = [Mesh(ulysses=2), Mesh(ulysses=4), Mesh(ring=2), Mesh(ring=3), Mesh(ring=4), Mesh(ring=2, ulysses=2)]


def qkv(documents, *, poison):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(ROWS, HEADS, CHANNELS, generator=generator) for _ in range(3)]
    if poison:
        for tensor in made:
            tensor[documents.num_valid :] = torch.nan
    return made


@pytest.mark.parametrize("mesh", MESHES, ids=Mesh.described)
@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
def test_ranks_attend_as_one(mesh, documents):
    want = ATTEND(*qkv(documents, poison=False), documents)
    q, k, v = qkv(documents, poison=True)
    groups, bounds = groups_of(mesh), share_bounds(ROWS, mesh.num_shares)

    def attend(mine):
        share = mine.place.ring * mesh.ulysses + mine.place.ulysses
        rows = slice(bounds[share], bounds[share + 1])
        return attend_across(ATTEND, mine)(q[rows], k[rows], v[rows], documents)

    found = torch.cat(together(attend, groups))
    if mesh.ring == 1:
        assert torch.equal(found, want)
    else:
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    assert not found[documents.num_valid :].any()
    for one in groups:
        assert len(one.ring.calls) == mesh.ring - 1  # what came last goes to nobody
        assert len(one.ulysses.calls) == (2 if mesh.ulysses > 1 else 0)


def test_what_crosses_is_counted_in_rows():
    documents = DOCUMENTS["one"]
    q, k, v = qkv(documents, poison=False)
    groups = groups_of(Mesh(ulysses=2))
    bounds = share_bounds(ROWS, 2)

    def attend(mine):
        rows = slice(*bounds[mine.ulysses.rank : mine.ulysses.rank + 2])
        return attend_across(ATTEND, mine)(q[rows], k[rows], v[rows], documents)

    together(attend, groups)
    # Half of the heads of my rows go there, and half of the heads of its rows go back.
    assert [one.ulysses.calls for one in groups] == [
        [("heads were exchanged", 12), ("rows were exchanged", 11)],
        [("heads were exchanged", 11), ("rows were exchanged", 12)],
    ]


def test_one_share_attends_as_it_is():
    assert attend_across(ATTEND, None) is ATTEND
    assert attend_across(ATTEND, groups_of(Mesh())[0]) is ATTEND
