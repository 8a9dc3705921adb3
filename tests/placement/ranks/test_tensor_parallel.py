"""Blocks cut over processes with gloo: the sum is the whole, wherever the shards' weights live."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.errors import ConfigError, WorkerDied
from talkies.h3.config import DiTConfig
from talkies.model.chunking import Chunking
from talkies.placement.quantize import QuantizeConfig, placer
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.peers import Peers
from talkies.placement.ranks.tensor_parallel import Shard, ShardedTensors, cut_of, join_ranks, shard_config
from talkies.placement.stream.layerwise import LayerwiseConfig
from tests.placement.rank_processes import CPU, TIMEOUT_S, embedded_reader, embedded_step, join, run

PLAIN, FP8 = QuantizeConfig(), QuantizeConfig(method="fp8")


def _placed(source, quantize=PLAIN, layerwise=None):
    """Loaded as an engine loads; (DiT, residency)."""
    from talkies.attention import registry
    from talkies.engine.load.place_components import place_dit
    from talkies.kernels.select import REFERENCE
    from talkies.placement.components import Residency

    residency = Residency()
    dit = place_dit(
        source,
        CPU,
        residency,
        group="dit",
        attend=registry.create("sdpa"),
        text_attend=None,
        ops=REFERENCE,
        quantize=quantize,
        layerwise=layerwise,
    )
    return dit, residency


def _sharded(reader, peers, quantize=PLAIN, layerwise=None):
    source = ShardedTensors(reader, Shard(rank=peers.rank, degree=peers.world))
    dit, residency = _placed(source, quantize, layerwise)
    join_ranks(dit, RankGroups(Mesh(tensor=peers.world), peers))
    return dit, residency


def _equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _compares(rank, world, port, results):
    group = join(rank, world, port)
    peers, found = Peers(group), {}
    with torch.inference_mode():
        reader = embedded_reader()
        one = embedded_step(_placed(reader)[0], reader)()
        dit, _ = _sharded(reader, peers)
        found["heads"] = dit.config.num_attention_heads / reader.config.num_attention_heads
        step = embedded_step(dit, reader)
        resident = step()
        found["fp32"] = fw.relative(resident, one)
        found["repeats"] = _equal(step(), resident)
        others = [torch.empty_like(resident[0]) for _ in range(world)]
        dist.all_gather(others, resident[0])
        found["ranks agree"] = _equal(others, [resident[0]] * world)
        dit.use_chunking(Chunking(mlp_rows=64, head_groups=2))
        found["chunked"] = fw.relative(step(), resident)
        for name, layerwise in (("streamed", LayerwiseConfig()), ("some stay", LayerwiseConfig(resident=2))):
            dit, residency = _sharded(reader, peers, layerwise=layerwise)
            step = embedded_step(dit, reader)
            found[name] = _equal(step(), resident) and _equal(step(), resident)
            whole = sum(p.numel() * p.element_size() for p in dit.blocks.parameters())
            found[f"{name} bytes"] = residency.device_bytes("dit") / whole
            residency.close()

        one_fp8 = embedded_step(_placed(reader, FP8)[0], reader)()
        dit, _ = _sharded(reader, peers, FP8)
        assert dit.blocks[0].ff.down.weight.dtype == torch.float8_e4m3fn
        resident = embedded_step(dit, reader)()
        found["fp8"] = fw.relative(resident, one_fp8)
        found["fp8 to fp32"], found["fp8 of one rank to fp32"] = (fw.relative(x, one) for x in (resident, one_fp8))
        dit, residency = _sharded(reader, peers, FP8, LayerwiseConfig())
        found["fp8 streamed"] = _equal(embedded_step(dit, reader)(), resident)
        residency.close()

        reader = embedded_reader(torch.bfloat16)
        dit, _ = _sharded(reader, peers)
        found["bf16"] = fw.relative(embedded_step(dit, reader)(), one)
        found["bf16 of one rank"] = fw.relative(embedded_step(_placed(reader)[0], reader)(), one)
    results[rank] = found
    dist.destroy_process_group()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_are_one_and_streaming_changes_no_bit(world):
    results = run(_compares, world)
    assert set(results) == set(range(world))
    for found in results.values():
        assert found["heads"] == 1 / world
        assert found["fp32"] < 2e-6
        assert found["repeats"]
        assert found["ranks agree"]
        assert found["chunked"] < 2e-6
        assert found["streamed"]
        assert found["some stay"]
        assert found["streamed bytes"] < 0.6  # two slots, and not the stack
        # Ranks quantise slices: other e4m3 values, as far from float32 as one rank's.
        assert found["fp8"] < 0.1
        assert found["fp8 to fp32"] < 1.2 * found["fp8 of one rank to fp32"]
        assert found["fp8 streamed"]
        assert found["bf16"] < 2 * found["bf16 of one rank"] < 0.1


def _fails(rank, world, port, results):
    """Rank 1 raises in the middle of a step and stays alive for a while."""
    group = join(rank, world, port)
    peers = Peers(group)
    with torch.inference_mode():
        reader = embedded_reader()
        dit, _ = _sharded(reader, peers, layerwise=LayerwiseConfig())
        step = embedded_step(dit, reader)
        step()
        if rank == 1:

            def forward(x):
                raise MemoryError("no room for the feed-forward")

            dit.blocks[2].ff.forward = forward
        began = time.monotonic()
        try:
            for _ in range(5):
                step()
            results[rank] = (0.0, "went on")
        except (WorkerDied, MemoryError) as error:
            results[rank] = (time.monotonic() - began, f"{type(error).__name__} {error}")
    if rank == 1:
        time.sleep(2)  # alive, but out of the round
    os._exit(0)


@pytest.mark.timeout(150)
def test_a_rank_that_fails_ends_the_other_with_its_reason():
    results = run(_fails)
    assert results[1][1] == "MemoryError no room for the feed-forward"
    seconds, text = results[0]
    assert seconds < TIMEOUT_S + 5
    assert text.startswith("WorkerDied rank 1 failed (MemoryError: no room for the feed-forward): rank 0 stops, too")


def test_degrees_that_do_not_divide_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"tensor_parallel=3 does not divide 56 heads .use 1, 2, 4, 7, 8, 14"):
        shard_config(DiTConfig(), 3)
    with pytest.raises(ConfigError, match=r"does not divide 98 feed-forward channels .use 1, 2, 7, 14"):
        shard_config(DiTConfig(num_attention_heads=28, ffn_dim=98), 4)
    with pytest.raises(ConfigError, match="tensor_parallel=0"):
        shard_config(DiTConfig(), 0)
    assert shard_config(DiTConfig(), 8).inner_dim == 7 * 128


def test_a_shard_too_narrow_for_fp8_is_refused(monkeypatch):
    monkeypatch.setattr("talkies.placement.quantize.check_device", lambda *_: None)
    config = shard_config(DiTConfig(num_attention_heads=8, attention_head_dim=24, rope_freq_dim=4, ffn_dim=64), 8)
    with pytest.raises(ConfigError, match="attention width is 24"):
        placer(FP8, config, None, torch.device("cuda"))


@pytest.mark.parametrize("degree", [2, 4])
def test_shards_add_up_to_the_whole(degree):
    """Every product of a block, from shards that one process holds."""
    config = fw.TINY
    source = RandomDiT(config, CPU, torch.float32)
    shards = [ShardedTensors(source, Shard(rank=rank, degree=degree)) for rank in range(degree)]
    generator = torch.Generator().manual_seed(0)
    heads, head_dim, ffn = config.num_attention_heads, config.attention_head_dim, config.ffn_dim

    def both(name):
        return source.tensor(f"blocks.1.{name}"), [s.tensor(f"blocks.1.{name}") for s in shards]

    x = torch.randn(5, config.hidden_size, generator=generator)
    whole, parts = both("attn.to_qkv.weight")
    joined = torch.cat([(x @ w.T).view(5, 3, heads // degree, head_dim) for w in parts], dim=2)
    torch.testing.assert_close(joined, (x @ whole.T).view(5, 3, heads, head_dim))
    whole, parts = both("ff.up.weight")
    joined = torch.cat([(x @ w.T).view(5, 2, ffn // degree) for w in parts], dim=2)
    torch.testing.assert_close(joined, (x @ whole.T).view(5, 2, ffn))
    for name in ("attn.to_out.weight", "ff.down.weight"):
        whole, parts = both(name)
        y = torch.randn(5, whole.shape[1], generator=generator)
        summed = sum(a @ w.T for a, w in zip(y.chunk(degree, dim=1), parts, strict=True))
        torch.testing.assert_close(summed, y @ whole.T)
    whole, parts = both("norm1.weight")
    assert all(torch.equal(part, whole) for part in parts)


def test_adaln_and_what_is_outside_the_blocks_is_whole():
    for name in ("adaln.weight", "norm2.weight", "attn.norm_q"):
        assert cut_of(f"blocks.0.{name}", fw.TINY, Shard(rank=1, degree=2)) is None
    assert cut_of("proj_in.weight", fw.TINY, Shard(rank=1, degree=2)) is None
