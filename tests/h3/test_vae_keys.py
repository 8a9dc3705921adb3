from __future__ import annotations

import pytest
import torch

from talkies.h3.vae_keys import convert_video_vae, is_original, join_heads, split_heads, swap_halves
from tests.codecs import tiny


@pytest.fixture(scope="module")
def vae():
    return tiny.video_vae()


def test_port_to_original_and_back_is_bit_equal(vae):
    port = vae.state_dict()
    original = convert_video_vae(port, "original", num_heads=2)
    back = convert_video_vae(original, "port", num_heads=2)
    assert back.keys() == port.keys()
    assert all(torch.equal(back[key], port[key]) for key in port)


def test_the_original_has_one_interleaved_matrix_and_the_old_names(vae):
    port = vae.state_dict()
    original = convert_video_vae(port, "original", num_heads=2)
    assert is_original(frozenset(original))
    assert not is_original(frozenset(port))
    assert "encoder.down.0.block.0.conv1.weight" in original
    assert "encoder.down.0.downsample.conv.weight" in original
    assert "decoder.x_embedder.weight" in original
    q = port["decoder.transformer_blocks.0.attn.to_q.weight"]
    k = port["decoder.transformer_blocks.0.attn.to_k.weight"]
    qkv = original["decoder.transformer_blocks.0.attn.to_qkv.weight"]
    head_dim = q.shape[0] // 2
    assert torch.equal(qkv[:head_dim], q[:head_dim])
    assert torch.equal(qkv[head_dim : 2 * head_dim], k[:head_dim])
    value, gate = port["decoder.transformer_blocks.0.ff.net.0.proj.weight"].chunk(2)
    assert torch.equal(original["decoder.transformer_blocks.0.ff.w1.weight"], torch.cat([gate, value]))


def test_the_unread_mask_token_is_dropped(vae):
    original = tiny.original_keys(vae)
    assert "decoder.mask_token" in original
    assert convert_video_vae(original, "port", num_heads=2).keys() == vae.state_dict().keys()


@pytest.mark.parametrize("rest", [(), (7,)])
def test_heads_split_and_join(rest):
    qkv = torch.randn(5 * 3 * 4, *rest)
    assert torch.equal(join_heads(list(split_heads(qkv, 5)), 5), qkv)
    assert torch.equal(swap_halves(swap_halves(qkv)), qkv)
