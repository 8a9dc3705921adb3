"""Parts of a softmax over some of the keys, merged, are the softmax over all of them."""

from __future__ import annotations

import itertools

import pytest
import torch

from talkies.attention.partial import Merged, partial_of, sdpa_partial
from talkies.attention.sdpa import sdpa
from talkies.errors import ConfigError


@pytest.mark.parametrize(("scale", "apart"), [(1.0, 1e-6), (12.0, 1e-4)])
def test_parts_in_any_order_are_the_whole(scale, apart):
    """Large scores, too: sums of exponentials would overflow without the log, whose last bits are then coarser."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(23, 3, 16, generator=generator) * s for s in (scale, scale, 1.0))
    want = sdpa(q, k, v, None)
    for cuts in ((0, 23), (0, 1, 22, 23), (0, 8, 16, 23)):
        parts = list(itertools.pairwise(cuts))
        for order in (parts, parts[::-1]):
            merged = Merged(q)
            for a, b in order:
                merged.add(0, 23, *sdpa_partial(q, k[a:b], v[a:b]))
            torch.testing.assert_close(merged.rows(torch.float32), want, rtol=1e-5, atol=apart)


def test_rows_that_saw_no_key_are_zero():
    q = torch.randn(4, 2, 8)
    merged = Merged(q)
    merged.add(1, 3, *sdpa_partial(q[1:3], q, q))
    rows = merged.rows(torch.bfloat16)
    assert rows.dtype == torch.bfloat16
    assert not rows[[0, 3]].any()
    assert rows[1:3].isfinite().all()


@pytest.mark.parametrize("name", ["fa3-fp8", "fa3", "cudnn", "flex", "sage"])
def test_a_backend_without_its_log_sum_exp_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"attention={name} does not here") as caught:
        partial_of(name)
    assert caught.value.param == "ring_degree"
    assert "ulysses_degree" in caught.value.hint
