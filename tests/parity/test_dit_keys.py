"""Names, shapes and tensor order of a checkpoint against diffusers' model and its converter."""

from __future__ import annotations

import pytest
import torch

from talkies.attention.sdpa import sdpa
from talkies.h3 import dit_keys as keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Layout
from talkies.model.dit import PackedDiT
from tests.dit_files import convert_dit
from tests.parity.h3 import oracle_dit


def test_the_released_sizes_give_the_released_counts():
    from diffusers import MiniMaxH3Transformer3DModel

    config = DiTConfig()
    with torch.device("meta"):
        dit = PackedDiT(config, attend=sdpa)
        oracle = MiniMaxH3Transformer3DModel()
    assert sum(p.numel() for p in dit.parameters()) == 33_122_992_896
    assert sum(p.numel() for p in oracle.parameters()) == 33_122_992_896
    port = keys.expected_keys(config, Layout.PORT)
    assert len(port) == 638
    assert port == {name: tuple(p.shape) for name, p in oracle.named_parameters()}
    assert len(keys.expected_keys(config, Layout.ORIGINAL)) == 535
    ours = {spec.name: spec.shape for spec in keys.all_specs(config)}
    assert ours == {name: tuple(p.shape) for name, p in dit.named_parameters()}


@pytest.mark.parametrize("layout", [Layout.ORIGINAL, Layout.REPACKED])
def test_conversion_round_trips_and_agrees_with_diffusers(layout):
    from diffusers.loaders.single_file_utils import convert_minimax_h3_transformer_checkpoint_to_diffusers

    oracle = oracle_dit(dtype=torch.bfloat16)
    config = DiTConfig.from_dict(dict(oracle.config))
    port = dict(oracle.state_dict())
    original = convert_dit(port, config, source=Layout.PORT, target=layout)
    assert {k: tuple(v.shape) for k, v in original.items()} == keys.expected_keys(config, layout)
    assert torch.equal(original[keys.ROPE_KEY], oracle.rope.inv_freq)
    qkv_layout = "interleaved" if layout is Layout.ORIGINAL else "stacked"
    theirs = convert_minimax_h3_transformer_checkpoint_to_diffusers(
        dict(original), oracle.config, qkv_layout=qkv_layout
    )
    back = convert_dit(original, config, source=layout, target=Layout.PORT)
    for converted in (theirs, back):
        assert converted.keys() == port.keys()
        for key, value in port.items():
            assert converted[key].dtype == value.dtype
            assert torch.equal(converted[key], value), key
