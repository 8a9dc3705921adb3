from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from talkies.codecs.memo import Memo, content_key, num_bytes
from talkies.codecs.text.presentation import EncoderImage


def test_the_least_recently_used_value_leaves_first():
    memo = Memo(budget_bytes=3 * 400)
    for name in "abc":
        memo.put(name, torch.zeros(100))
    memo.get("a")
    memo.put("d", torch.zeros(100))
    assert memo.get("b") is None
    assert all(memo.get(name) is not None for name in "acd")
    assert memo.used_bytes == 1200


def test_a_value_over_the_budget_is_not_kept():
    memo = Memo(budget_bytes=100)
    memo.put("a", torch.zeros(10))
    memo.put("a", torch.zeros(1000))
    assert memo.get("a") is None
    assert memo.used_bytes == 0


def test_a_value_is_computed_once():
    memo, calls = Memo(), []
    for _ in range(3):
        memo.remember("k", lambda: calls.append(1) or torch.ones(2))
    assert len(calls) == 1
    memo.clear()
    assert memo.used_bytes == 0


@dataclass(frozen=True)
class Condition:
    frames: torch.Tensor
    what: str


def test_equal_content_has_an_equal_key():
    first = content_key("p", Condition(torch.arange(6).view(2, 3), "x"), np.ones(3), (1, None, 2.5))
    again = content_key("p", Condition(torch.arange(6).view(2, 3).clone(), "x"), np.ones(3), (1, None, 2.5))
    assert first == again


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (([1, 2], [3]), ([1], [2, 3])),
        ((torch.zeros(2, 3),), (torch.zeros(3, 2),)),
        ((torch.zeros(2),), (torch.zeros(2, dtype=torch.int32),)),
        ((np.zeros((2, 3)),), (np.zeros((3, 2)),)),
        ((1,), (True,)),
        ((1,), ("1",)),
    ],
)
def test_different_content_has_a_different_key(one, other):
    assert content_key(*one) != content_key(*other)


def test_a_transposed_picture_is_hashed_by_content():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert content_key(EncoderImage(pixels)) == content_key(EncoderImage(np.asfortranarray(pixels)))
    tensor = torch.arange(6).view(2, 3)
    assert content_key(tensor.t()) == content_key(tensor.t().contiguous())


def test_bfloat16_and_scalars_can_be_hashed():
    assert content_key(torch.ones(3, dtype=torch.bfloat16)) != content_key(torch.zeros(3, dtype=torch.bfloat16))
    assert content_key(torch.tensor(1.5)) != content_key(torch.tensor(2.5))


def test_unhashable_things_are_refused():
    with pytest.raises(TypeError, match="object"):
        content_key(object())


def test_bytes_are_counted_through_containers():
    assert (
        num_bytes([torch.zeros(4, dtype=torch.float16), (np.zeros(2), Condition(torch.zeros(3), "w"))]) == 8 + 16 + 12
    )
