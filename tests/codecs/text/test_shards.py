"""Shares of the text encoder, one a thread: together they are the whole one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from talkies.codecs.text.encoder import Conditioner, TextEncoder
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderImage, EncoderVideo
from talkies.codecs.text.shards import TextShard, check_degree
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.engine.config import embedded_folder
from talkies.errors import ConfigError
from talkies.files.json_files import read_json

RELEASED = {
    "text_config": {"num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 25_600},
    "vision_config": {"num_heads": 16, "intermediate_size": 4304},
}


class Sums:
    """``add_up`` of as many threads as there are shares."""

    def __init__(self, size):
        self._barrier, self._size, self._given = threading.Barrier(size, timeout=60), size, {}
        self.count = 0

    def add_up(self, rank):
        def call(part):
            self._given[rank] = part.clone()
            self._barrier.wait()
            part.copy_(sum(self._given[other] for other in range(self._size)))
            self._barrier.wait()
            self.count += rank == 0

        return call


@pytest.fixture(scope="module")
def folder():
    return embedded_folder()


def conditioner(folder, shard=None):
    encoder = TextEncoder.load(folder / "text_encoder", shard=shard)
    return Conditioner(FolderTokenizer.load(folder / "tokenizer"), PatchConfig.load(folder / "processor"), encoder)


@pytest.mark.parametrize("size", [2, 4])
def test_shares_together_see_and_read_as_the_whole_encoder(folder, size):
    pixels = np.random.default_rng(0).integers(0, 255, (15, 64, 96, 3), np.uint8)
    visuals = [EncoderImage(pixels[0]), EncoderVideo(pixels, has_soundtrack=False)]
    prompt = "a red ball bounces with a bell sound"
    whole = conditioner(folder)
    sums = Sums(size)
    shares = [conditioner(folder, TextShard(rank, size, sums.add_up(rank))) for rank in range(size)]
    sizes = [sum(p.numel() for p in one.encoder.model.parameters()) for one in (whole, *shares)]
    assert len(set(sizes[1:])) == 1
    cut = sizes[0] - sizes[1]
    assert sum(p.numel() for p in whole.encoder.model.language_model.layers.parameters()) * (1 - 1 / size) * 0.98 < cut
    for given in ([], visuals):
        want = whole.encode(prompt, given)
        with ThreadPoolExecutor(size) as pool:
            found = list(pool.map(lambda one: one.encode(prompt, given), shares))  # noqa: B023 - done before the next
        for one in found:
            assert torch.equal(one.states, found[0].states)
            assert torch.equal(one.tags, want.tags)
            assert (one.states - want.states).norm() <= 1e-5 * want.states.norm()
    assert sums.count >= 2 * 2 * whole.encoder.num_live_layers


def test_a_share_is_a_part_of_every_product_and_all_of_the_rest(folder):
    """Sizes of a GQA encoder that differ from each other, so that no cut is taken for another."""
    qkv = torch.arange(3 * 8 * 2.0).reshape(3 * 8, 2)  # queries, keys, values of 8 rows each
    shards = [TextShard(rank, 2, print) for rank in range(2)]
    assert torch.equal(
        shards[1].cut("visual.blocks.3.attn.qkv.weight", qkv), qkv[[*range(4, 8), *range(12, 16), *range(20, 24)]]
    )
    assert torch.equal(
        shards[0].cut("visual.blocks.3.attn.qkv.bias", qkv[:, 0]), qkv[[*range(4), *range(8, 12), *range(16, 20)], 0]
    )
    up, key = qkv, "language_model.layers.7.mlp.up_proj.weight"
    assert torch.equal(torch.cat([shard.cut(key, up) for shard in shards]), up)
    down, key = qkv.T, "language_model.layers.7.mlp.down_proj.weight"
    assert torch.equal(torch.cat([shard.cut(key, down) for shard in shards], 1), down)
    for key in (
        "visual.blocks.3.attn.proj.bias",
        "visual.merger.linear_fc1.weight",
        "language_model.embed_tokens.weight",
    ):
        assert shards[1].cut(key, qkv) is qkv


@pytest.mark.parametrize(("degree", "words"), [(3, "64 heads and 8 key heads"), (16, "8 key heads"), (5, "64 heads")])
def test_a_degree_that_cuts_a_head_is_refused_with_those_that_do_not(degree, words):
    with pytest.raises(ConfigError, match=words) as refused:
        check_degree(RELEASED, degree)
    assert refused.value.hint == "use one of 1, 2, 4, 8"
    assert refused.value.param == "text_tensor_parallel"


def test_the_embedded_encoder_can_be_cut_in_two_and_four(folder):
    config = read_json(folder / "text_encoder" / "config.json")
    for degree in (1, 2, 4):
        check_degree(config, degree)
