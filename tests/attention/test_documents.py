"""Spans of rows: documents, and the exact ones among their rows."""

from __future__ import annotations

import pytest

from talkies.attention.base import merged


@pytest.mark.parametrize(
    ("spans", "want"),
    [
        ([], ()),
        ([(4, 4)], ()),
        ([(0, 3), (3, 5)], ((0, 5),)),  # neighbours
        ([(6, 8), (0, 3)], ((0, 3), (6, 8))),  # out of order
        ([(0, 10), (2, 5)], ((0, 10),)),  # one inside another
        ([(0, 5), (2, 10)], ((0, 10),)),
        ([(0, 10), (2, 5), (9, 12), (13, 14)], ((0, 12), (13, 14))),
    ],
)
def test_spans_are_joined_and_never_lose_a_row(spans, want):
    assert merged(spans) == want
