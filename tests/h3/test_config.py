from __future__ import annotations

import dataclasses
from math import prod

import pytest

from talkies.errors import CheckpointError
from talkies.h3.config import ORIGINAL_KEYS, DiTConfig
from talkies.h3.dit_keys import all_specs

PORT = dataclasses.asdict(DiTConfig())
TO_ORIGINAL = {port: original for original, port in ORIGINAL_KEYS.items()}
ORIGINAL = {TO_ORIGINAL.get(k, k): list(v) if isinstance(v, tuple) else v for k, v in PORT.items()}


@pytest.mark.parametrize("values", [PORT, ORIGINAL, {**PORT, **ORIGINAL}, {}])
def test_both_spellings_give_the_released_config(values):
    assert DiTConfig.from_dict({"_class_name": "MiniMaxH3DiTModel", **values}) == DiTConfig()


def test_derived_sizes():
    config = DiTConfig()
    assert config.inner_dim == 7168
    assert config.video_row_dim == 96
    assert config.adaln_out_features == 96_768
    assert config.final_adaln_out_features == 10_752
    assert sum(prod(spec.shape) for spec in all_specs(config)) == 33_122_992_896
    stated = {"adaln_out_features": 96_768, "final_adaln_out_features": 10_752}
    assert DiTConfig.from_dict(stated) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sparse_window": 3}, "unknown key 'sparse_window'"),
        ({"ffn_dim": 10, "ffn_hidden_size": 12}, "gives ffn_dim twice: 10 and 12"),
        ({"adaln_out_features": 7}, "adaln_out_features=7"),
        ({"hidden_size": "5376"}, "hidden_size='5376'"),
        ({"hidden_size": True}, "hidden_size=True"),
        ({"num_layers": -1}, "num_layers=-1"),
        ({"norm_eps": 0}, "norm_eps=0"),
        ({"patch_size": [1, 2]}, "three positive integers"),
        ({"patch_size": [2, 2, 2]}, "several latent frames"),
        ({"rope_freq_dim": 22}, "132 channels"),
        ({"freq_dim": 7}, "freq_dim=7 is odd"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values, message):
    with pytest.raises(CheckpointError, match=message):
        DiTConfig.from_dict(values)
