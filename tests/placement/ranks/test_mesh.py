"""Degrees, places and shares: arithmetic, in one process."""

from __future__ import annotations

import itertools

import pytest

from talkies.errors import ConfigError
from talkies.h3.config import DiTConfig
from talkies.h3.spans import Spans, Stream
from talkies.placement.ranks.mesh import ONE, Mesh, share_bounds, share_lengths


def test_the_published_clip_is_cut_exactly():
    assert share_lengths(58_758, 4) == [14_690, 14_690, 14_689, 14_689]
    assert share_lengths(58_758, 2) == [29_379, 29_379]
    assert share_bounds(58_758, 7)[-1] == 58_758
    assert share_bounds(3, 4) == (0, 1, 2, 3, 3)


def test_every_rank_is_once_in_a_group_of_each_axis():
    mesh = Mesh(ring=2, ulysses=3, tensor=2)
    assert mesh.size == 12
    for axis, size in (("ring", 2), ("ulysses", 3), ("tensor", 2), ("rows", 6)):
        groups = list(mesh.groups(axis))
        assert all(len(group) == size for group in groups)
        assert sorted(rank for group in groups for rank in group) == list(range(12))
    assert next(iter(mesh.groups("tensor"))) == [0, 1]  # neighbours
    for group in mesh.groups("tensor"):
        assert len({mesh.share_of(rank) for rank in group}) == 1  # who shares channels has the same rows
    for group in mesh.groups("rows"):
        assert [mesh.share_of(rank) for rank in group] == list(range(6))  # gathered rows are in order
    assert mesh.described() == "2 x ring, 3 x ulysses, 2 x tensor"
    assert ONE.described() == "one rank"


@pytest.mark.parametrize(
    ("mesh", "words", "hint"),
    [
        (Mesh(ulysses=5), "ulysses_degree=5 does not divide 56 heads", "use 1, 2, 4, 7, 8, 14, 28, 56"),
        (Mesh(tensor=2, ulysses=8), "the 28 heads that tensor_parallel=2 leaves", "use 1, 2, 4, 7, 14, 28"),
        (Mesh(tensor=3), "tensor_parallel=3 does not divide 56 heads", "use 1, 2, 4, 7, 8, 14"),
    ],
)
def test_degrees_of_the_release_that_cannot_be_hear_which_can(mesh, words, hint):
    with pytest.raises(ConfigError, match=words) as caught:
        mesh.check(DiTConfig())
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("mesh", [Mesh(ulysses=4), Mesh(ulysses=8), Mesh(ring=3), Mesh(tensor=2, ulysses=4, ring=2)])
def test_degrees_that_can_be_are_not_refused(mesh):
    mesh.check(DiTConfig())


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7, 19])
def test_shares_of_spans_are_the_whole(num_shares):
    """Text, sound and pictures of two requests with padding behind them, cut anywhere."""
    lengths = [(Stream.TEXT, 3), (Stream.VIDEO, 2), (Stream.AUDIO, 4), (Stream.VIDEO, 5)] * 2
    spans = Spans(lengths, 31)
    bounds = share_bounds(31, num_shares)
    shares = [spans.share(a, b) for a, b in itertools.pairwise(bounds)]
    assert sum(share.spans.total_rows for share in shares) == 31
    for stream in Stream:
        total = sum(n for s, n in lengths if s is stream)
        joined = [row for share in shares for row in range(*share.ranges[stream])]
        assert joined == list(range(total)), stream
