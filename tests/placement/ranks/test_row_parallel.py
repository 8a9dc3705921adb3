"""Rows over ranks: Ulysses, ring, both, and either with tensor parallelism equal one rank, whatever the layout."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from talkies.attention.base import Trimmed
from talkies.attention.sdpa import sdpa
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.errors import WorkerDied
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.mesh import Mesh
from talkies.placement.ranks.peers import Peers
from tests.placement.rank_processes import CPU, embedded_reader, join, run
from tests.placement.ranks.meshes import Inputs, build, forward, layouts

MESHES = {
    2: [Mesh(ulysses=2), Mesh(ring=2)],
    4: [Mesh(ulysses=4), Mesh(ring=4), Mesh(ring=2, ulysses=2), Mesh(ulysses=2, tensor=2), Mesh(ring=2, tensor=2)],
}


def _largest(got, want):
    """The largest difference, by the largest velocity."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want, strict=True))


def _compares(rank, world, port, results):
    group = join(rank, world, port)
    peers, found = Peers(group), {}
    groups = {mesh: RankGroups(mesh, peers) for mesh in MESHES[world]}
    for source_name, source in (("embedded", embedded_reader()), ("random", RandomDiT(fw.TINY, CPU, torch.float32))):
        alone = build(source)
        for mesh, mine in groups.items():
            dit, runner = build(source, mine)
            for name, layout in layouts().items():
                inputs = Inputs.of(layout, source)
                poison = float("nan") if name == "padded" else None
                want = forward(*alone, inputs)
                got = forward(dit, runner, inputs, poison=poison)
                again = forward(dit, runner, inputs, poison=poison)
                key = f"{source_name} {mesh.described()} {name}"
                found[key] = _largest(got, want)
                found[f"{key}: twice"] = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
                for part in got:
                    others = [torch.empty_like(part) for _ in range(world)]
                    dist.all_gather(others, part.contiguous())
                    found[f"{key}: everywhere"] = all(torch.equal(other, part) for other in others)
    results[rank] = found
    dist.destroy_process_group()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_that_share_rows_equal_one_rank(world):
    results = run(_compares, world)
    assert set(results) == set(range(world))
    for found in results.values():
        assert len(found) == 2 * len(MESHES[world]) * 6 * 3
        for name, value in found.items():
            assert value is True or (not isinstance(value, bool) and value < 1e-5), (name, value)


class Rough:
    """An approximating backend: queries lose bits, but for rows that must be exact."""

    def __call__(self, q_SNH, k_SNH, v_SNH, documents):
        rough = q_SNH.to(torch.bfloat16).float()
        for start, stop in documents.exact if documents else ():
            rough[start:stop] = q_SNH[start:stop]
        return sdpa(rough, k_SNH, v_SNH, documents)


def _keeps_exact_rows(rank, world, port, results):
    peers, found = Peers(join(rank, world, port)), {}
    source, layout = RandomDiT(fw.TINY, CPU, torch.float32), layouts()["ref2va"]
    inputs = Inputs.of(layout, source)
    exact = ((12, 30),)  # conditions; the cut between the ranks is among them
    groups = RankGroups(Mesh(ulysses=world), peers)
    attend = Trimmed(Rough(), "rough")
    want = forward(*build(source, attend=attend), inputs, exact=exact)
    found["with exact rows"] = _largest(forward(*build(source, groups, attend), inputs, exact=exact), want)
    found["without"] = _largest(forward(*build(source, groups, attend), inputs), want)
    results[rank] = found
    dist.destroy_process_group()


@pytest.mark.timeout(100)
def test_an_approximating_attention_keeps_its_exact_rows():
    for found in run(_keeps_exact_rows).values():
        assert found["with exact rows"] < 1e-5
        assert found["without"] > 1e-4  # it would have shown


def _fails_between(rank, world, port, results):
    """Rank 1 raises in the middle of a forward."""
    peers = Peers(join(rank, world, port))
    source = RandomDiT(fw.TINY, CPU, torch.float32)
    dit, runner = build(source, RankGroups(Mesh(ulysses=world), peers))
    inputs = Inputs.of(layouts()["t2va"], source)
    forward(dit, runner, inputs)
    if rank == 1:

        def fails(x):
            raise MemoryError("no room for the feed-forward")

        dit.blocks[1].ff.forward = fails
    began = time.monotonic()
    try:
        forward(dit, runner, inputs)
        results[rank] = (0.0, "went on")
    except (WorkerDied, MemoryError) as error:
        results[rank] = (time.monotonic() - began, f"{type(error).__name__} {error}")
    os._exit(0)


@pytest.mark.timeout(100)
def test_a_rank_that_fails_inside_a_forward_ends_the_other_with_its_reason():
    results = run(_fails_between)
    assert results[1][1] == "MemoryError no room for the feed-forward"
    seconds, text = results[0]
    assert seconds < 10
    assert text.startswith("WorkerDied rank 1 failed (MemoryError: no room for the feed-forward): rank 0 stops, too")
