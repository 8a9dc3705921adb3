from __future__ import annotations

import itertools

import pytest
import torch

from talkies.kernels.runs import RowRuns


def test_equal_neighbours_merge_and_empty_runs_vanish():
    runs = RowRuns.of([(3, 1), (0, 7), (2, 1), (4, 0)])
    assert runs == RowRuns((0, 5, 9), (1, 0))
    assert list(runs) == [(0, 5, 1), (5, 9, 0)]
    assert runs.num_rows == 9


def test_the_index_lists_every_row_and_is_made_once():
    runs = RowRuns.of([(2, 3), (1, 0), (3, 5)])
    index = runs.index(torch.device("cpu"))
    assert index.tolist() == [3, 3, 0, 5, 5, 5]
    assert index.dtype == torch.int32
    assert runs.index(torch.device("cpu")) is index


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 10])
def test_cuts_add_up_to_the_whole(shares):
    runs = RowRuns.of([(13, 0), (1, 2), (29, 1), (27, 0)])
    bounds = [i * 7 * 10 // shares for i in range(shares)] + [70]
    parts = [runs.cut(a, b).index(torch.device("cpu")) for a, b in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat(parts), runs.index(torch.device("cpu")))
