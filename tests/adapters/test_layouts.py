"""Every published layout of a low-rank adapter gives the dense sum, whatever the weights are placed as."""

from __future__ import annotations

import json

import pytest
import torch

from talkies.adapters.fuse import Applied, FusedTensors
from talkies.adapters.named_path import NamedPath
from talkies.adapters.read import open_adapter
from talkies.adapters.route import open_adapters
from talkies.errors import CheckpointError, ConfigError
from talkies.h3.dit_keys import Layout
from talkies.model.weights import DiTReader
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, cut_of
from tests.adapters import files
from tests.model.test_weights import _save, _tensors
from tests.model.tiny import CONFIG

RANK = 4
PAIRS = files.factors(CONFIG, RANK)
PORT, STACKED = files.port_pairs(PAIRS), files.native_pairs(PAIRS, CONFIG, grouped=False)
GROUPED = files.native_pairs(PAIRS, CONFIG, grouped=True)

# name -> (tensors, metadata, what the product counts)
LAYOUTS = {
    "diffusers": (files.peft(PORT, prefix="transformer."), {}, 1.0),
    "diffusers with its metadata": (
        files.peft(PORT, prefix="transformer."),
        {"lora_adapter_metadata": json.dumps({"transformer.r": RANK, "transformer.lora_alpha": 8})},
        2.0,
    ),
    "PEFT": (files.peft(PORT, prefix="base_model.model."), {}, 1.0),
    "LightX2V Turbo": (files.peft(PORT, infix=".default"), {"alpha": "8", "key_format": "minimax-h3-diffusers"}, 2.0),
    "bare": (files.peft(STACKED), {}, 1.0),
    "ai-toolkit": (files.peft(STACKED, prefix="diffusion_model."), {}, 1.0),
    "musubi-tuner": (files.kohya(STACKED, 2.0), {}, 0.5),
    "kohya, diffusers' modules": (files.kohya(PORT, 1.0), {}, 0.25),
    "DiffSynth-Studio": (files.peft(GROUPED, infix=".default"), {}, 1.0),
    "FlashGen": (
        files.peft(GROUPED, prefix="transformer.", infix=".default"),
        {"key_format": "minimax-h3-native", "qkv_layout": "grouped", "lora_rank": "4", "lora_alpha": "4"},
        1.0,
    ),
    "PDD without its bank": (
        {
            key.replace("lora_A.weight", "lora_down").replace("lora_B.weight", "lora_up"): t
            for key, t in files.peft(PORT).items()
        },
        {"lora_rank": "4", "lora_alpha": "4"},
        1.0,
    ),
}


@pytest.fixture(scope="module", params=[Layout.PORT, Layout.ORIGINAL], ids=["port", "original"])
def checkpoint(request, tmp_path_factory):
    return _save(tmp_path_factory.mktemp("dit"), _tensors(request.param))


def fused(checkpoint, path, strength=1.0, dtype=torch.float32):
    changes = open_adapter(NamedPath("it", str(path))).changes(CONFIG, frozenset({None, "transformer"}))
    return FusedTensors(DiTReader(checkpoint), [Applied("it", changes, strength)], dtype=dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_the_dense_sum(checkpoint, tmp_path, name):
    tensors, metadata, scale = LAYOUTS[name]
    path = files.save(tensors, tmp_path / "it.safetensors", **metadata)
    base, source = DiTReader(checkpoint, dtype=torch.float32), fused(checkpoint, path, 0.5)
    for spec in base.specs:
        module = spec.removesuffix(".weight")
        got, plain = source.tensor(spec), base.tensor(spec)
        if spec.endswith(".weight") and module in PAIRS:
            torch.testing.assert_close(got, files.dense(plain, PAIRS[module], 0.5 * scale), atol=1e-6, rtol=0)
            assert not torch.equal(got, plain)
        else:
            assert torch.equal(got, plain), spec


def test_a_sum_is_rounded_once_to_the_blocks_dtype(checkpoint, tmp_path):
    path = files.save(files.peft(PORT), tmp_path / "it.safetensors")
    exact, rounded = fused(checkpoint, path), fused(checkpoint, path, dtype=torch.bfloat16)
    for name in PAIRS:
        want = exact.tensor(name + ".weight")
        want = want if name == "proj_out" else want.bfloat16()  # a float32 island stays one
        assert torch.equal(rounded.tensor(name + ".weight"), want), name


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ranks_share_is_cut_from_the_same_sum(checkpoint, tmp_path, rank):
    whole = fused(checkpoint, files.save(files.peft(PORT), tmp_path / "it.safetensors"))
    shard = Shard(rank=rank, degree=2)
    shares = ShardedTensors(whole, shard)
    for spec in whole.source.specs:
        cut = cut_of(spec, CONFIG, shard)
        want = whole.tensor(spec) if cut is None else cut.of(whole.tensor(spec))
        torch.testing.assert_close(shares.tensor(spec), want, atol=1e-6, rtol=0)


def test_strength_0_is_no_adapter_bit_for_bit(checkpoint, tmp_path):
    path = files.save(files.peft(PORT), tmp_path / "it.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        plain, none = DiTReader(checkpoint, dtype=dtype), fused(checkpoint, path, 0.0, dtype)
        for got, want in zip(none.top(), plain.top(), strict=True):
            assert got[0] == want[0]
            assert torch.equal(got[1], want[1])
            assert got[1].dtype == want[1].dtype
        for block in range(CONFIG.num_layers):
            got_block, want_block = none.block(block), plain.block(block)
            assert got_block.keys() == want_block.keys()
            assert all(torch.equal(got_block[name], want_block[name]) for name in want_block)
            assert torch.equal(none.block_adaln(block).weight, plain.block_adaln(block).weight)


def test_ways_of_reading_agree(checkpoint, tmp_path):
    source = fused(checkpoint, files.save(files.peft(PORT), tmp_path / "it.safetensors"))
    assert all(torch.equal(tensor, source.tensor(name)) for name, tensor in source.top())
    for block in range(CONFIG.num_layers):
        for name, tensor in source.block(block).items():
            assert torch.equal(tensor, source.tensor(f"blocks.{block}.{name}"))
        assert torch.equal(source.block_adaln(block).weight, source.tensor(f"blocks.{block}.adaln.weight"))


def test_full_rank_bias_and_replaced_weights(checkpoint, tmp_path):
    plain = DiTReader(checkpoint, dtype=torch.float32)
    d = CONFIG.hidden_size
    tensors = {
        "transformer_blocks.0.norm1.diff": torch.full((d,), 0.5),
        "proj_in.diff": torch.full((d, CONFIG.video_row_dim), 0.25),
        "proj_in.diff_b": torch.full((d,), -1.0),
        "transformer_blocks.1.attn.to_k.diff": torch.full((CONFIG.inner_dim, d), 2.0),
        "transformer_blocks.2.attn.norm_q.set_weight": torch.full((CONFIG.attention_head_dim,), 3.0),
        "audio_proj_out.set_bias": torch.full((CONFIG.audio_in_channels,), 4.0),
        **files.peft({"transformer_blocks.1.attn.to_k": PORT["transformer_blocks.1.attn.to_k"]}),
    }
    path = files.save(tensors, tmp_path / "it.safetensors")
    got = fused(checkpoint, path)
    inner = CONFIG.inner_dim
    assert torch.equal(got.tensor("blocks.0.norm1.weight"), plain.tensor("blocks.0.norm1.weight") + 0.5)
    assert torch.equal(got.tensor("proj_in.weight"), plain.tensor("proj_in.weight") + 0.25)
    assert torch.equal(got.tensor("proj_in.bias"), plain.tensor("proj_in.bias") - 1)
    assert torch.equal(got.tensor("audio_proj_out.bias"), torch.full((CONFIG.audio_in_channels,), 4.0))
    qkv, before = got.tensor("blocks.1.attn.to_qkv.weight"), plain.tensor("blocks.1.attn.to_qkv.weight")
    assert torch.equal(qkv[:inner], before[:inner])
    assert torch.equal(qkv[2 * inner :], before[2 * inner :])
    keys = files.dense(before[inner : 2 * inner], PORT["transformer_blocks.1.attn.to_k"], 1.0) + 2
    torch.testing.assert_close(qkv[inner : 2 * inner], keys, atol=1e-6, rtol=0)
    half = fused(checkpoint, path, 0.5).tensor("blocks.2.attn.norm_q")
    torch.testing.assert_close(half, (plain.tensor("blocks.2.attn.norm_q") + 3) / 2)


@pytest.mark.parametrize("layout", list(Layout))
def test_a_whole_checkpoint_takes_the_place_of_another(checkpoint, tmp_path, layout):
    other = {key: (tensor * 1.5).clone() for key, tensor in _tensors(layout).items() if key != "rope.inv_freq"}
    if layout is Layout.ORIGINAL:
        other["rope.inv_freq"] = _tensors(layout)["rope.inv_freq"]  # by which MiniMax's own order is known
    path = files.save(other, tmp_path / "it.safetensors")
    if layout is Layout.REPACKED:
        with pytest.raises(CheckpointError, match=r"in which order the rows of 'blocks.0.attn.qkv_proj.weight' lie"):
            fused(checkpoint, path)
        path.with_suffix(".json").write_text('{"qkv_layout": "stacked"}')
    plain, got = DiTReader(checkpoint), fused(checkpoint, path)
    for name in plain.specs:
        assert torch.equal(got.tensor(name), (plain.tensor(name) * 1.5).float()), name


def test_several_are_applied_in_their_order(checkpoint, tmp_path):
    d = CONFIG.hidden_size
    adds = files.save({"norm_out.norm.diff": torch.ones(d)}, tmp_path / "adds.safetensors")
    sets = files.save({"norm_out.norm.set_weight": torch.full((d,), 5.0)}, tmp_path / "sets.safetensors")
    opened = {
        n: open_adapter(NamedPath(n, str(p))).changes(CONFIG, frozenset({None})) for n, p in (("a", adds), ("s", sets))
    }
    both = FusedTensors(DiTReader(checkpoint), [Applied(n, c, 1.0) for n, c in opened.items()], dtype=None)
    assert both.tensor("norm_out.norm.weight").float().unique().tolist() == [5]
    other = both.with_strengths({"s": 1.0, "a": 2.0})
    assert other.tensor("norm_out.norm.weight").float().unique().tolist() == [7]
    assert torch.equal(
        both.with_strengths({}).tensor("norm_out.norm.weight"), DiTReader(checkpoint).tensor("norm_out.norm.weight")
    )


def test_each_goes_into_the_dit_that_it_is_for(tmp_path):
    def routed(name, tensors, partitions=("fl2va", "ref2va"), sidecar=None):
        path = files.save(tensors, tmp_path / f"{name}.safetensors")
        if sidecar:
            path.with_suffix(".json").write_text(json.dumps(sidecar))
        (one,) = open_adapters([NamedPath(name, str(path))], partitions)
        return sorted(one.parts), one.facts.tasks

    diff = {"norm_out.norm.diff": torch.ones(CONFIG.hidden_size)}
    assert routed("plain", diff) == (["fl2va"], ("t2va", "fl2va"))
    assert routed("alone", diff, ("ref2va",)) == (["ref2va"], ("ref2va",))
    prefixed = {f"transformer_ref.{key}": tensor for key, tensor in diff.items()}
    assert routed("ref", prefixed) == (["ref2va"], ("ref2va",))
    both = prefixed | {f"transformer.{key}": tensor for key, tensor in diff.items()}
    assert routed("both", both) == (["fl2va", "ref2va"], ("t2va", "fl2va", "ref2va"))
    assert routed("words", diff, sidecar={"tasks": ["t2va"]}) == (["fl2va"], ("t2va",))
    assert routed("said", diff, sidecar={"tasks": ["t2va", "ref2va"]}) == (["fl2va", "ref2va"], ("t2va", "ref2va"))
    with pytest.raises(ConfigError, match="adapter only is for ref2va, and loaded are fl2va"):
        routed("only", prefixed, ("fl2va",))
    path = files.save(diff, tmp_path / "again.safetensors")
    with pytest.raises(ConfigError, match="two adapters are called x"):
        open_adapters([NamedPath("x", str(path)), NamedPath("x", str(path))], ("fl2va",))
