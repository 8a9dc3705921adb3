from __future__ import annotations

import pytest
import torch

from talkies.errors import ConfigError
from talkies.stepcache import registry
from tests.model.tiny import tiny_layout


def test_off_never_skips():
    cache = registry.create("off")
    cache.begin(tiny_layout(), 19)
    x = torch.randn(5, 3)
    for step in range(19):
        assert not cache.decide(step, x)
        cache.observe(step, x, x)
    with pytest.raises(AssertionError):
        cache.predict(0, x)


def test_each_request_gets_its_own_policy():
    assert registry.create("off") is not registry.create("off")


def test_an_unknown_policy_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'magic'.*off"):
        registry.create("magic")
