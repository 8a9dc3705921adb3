"""Two processes with gloo share one host copy: bit-equal to resident, and no wait without end."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from talkies.placement.ranks import gathered as dlo
from talkies.placement.ranks import peers as peering
from talkies.placement.stream.host_memory import check_shm
from tests.placement.rank_processes import CPU, TIMEOUT_S, embedded_reader, embedded_step, join, run


def _embedded(group, *, share, quantize="none"):
    from talkies.attention import registry
    from talkies.kernels.select import REFERENCE
    from talkies.model.weights import build_dit
    from talkies.placement.quantize import QuantizeConfig, placer

    reader = embedded_reader()
    shared = dlo.SharedBlocks(peering.Peers(group), pin=False) if share else None

    def settle(name, block):
        if share and name.startswith("blocks."):
            shared.settle(int(name.split(".")[1]), block)

    place = placer(QuantizeConfig(method=quantize), reader.config, REFERENCE, CPU)
    dit = build_dit(reader, attend=registry.create("sdpa"), adaln=False, place=place, settle=settle)
    streamed = None
    if share:
        shared.publish()
        blocks = list(dit.blocks)
        streamed = dlo.stream_shared(blocks, shared, range(len(blocks)), CPU)
    return dit, streamed, embedded_step(dit, reader)


def _equal(rank, world, port, results):
    group = join(rank, world, port)
    with torch.inference_mode():
        expected = _embedded(group, share=False)[2]()
        dit, streamed, step = _embedded(group, share=True)
        for _ in range(2):
            assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
        # One copy: this rank's parameters are a mapping of a file that both map and that has no name any more.
        weight = dit.blocks[0].attn.to_qkv.weight
        with open("/proc/self/maps") as maps:
            lines = [line for line in maps if peering.PREFIX in line]
        starts = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in lines]
        assert any(a <= weight.data_ptr() < b for a, b in starts)
        assert all("(deleted)" in line for line in lines)
        if rank == 0:  # what one writes the other one reads
            weight.fill_(3.0)
        dist.barrier()
        assert float(weight.max()) == 3.0
        dist.barrier()
        streamed.close()
        # e4m3 weights and their scales cross as they are.
        expected = _embedded(group, share=False, quantize="fp8")[2]()
        dit, streamed, step = _embedded(group, share=True, quantize="fp8")
        assert dit.blocks[0].attn.to_qkv.weight.dtype == torch.float8_e4m3fn
        assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
        streamed.close()
    results[rank] = "equal"
    dist.destroy_process_group()


def _dies(rank, world, port, results):
    from talkies.errors import WorkerDied

    group = join(rank, world, port)
    with torch.inference_mode():
        dit, _, step = _embedded(group, share=True)
        step()
        if rank == 1:
            real, calls = dit.blocks[2].ff.forward, []

            def forward(x):
                calls.append(1)
                os._exit(9)
                return real(x)

            dit.blocks[2].ff.forward = forward
        began = time.monotonic()
        try:
            for _ in range(5):
                step()
            results[rank] = "went on"
        except WorkerDied as error:
            results[rank] = f"{time.monotonic() - began:.1f} {error}"


def _raises(rank, world, port, results):
    from talkies.errors import WorkerDied

    group = join(rank, world, port)
    with torch.inference_mode():
        dit, _, step = _embedded(group, share=True)
        step()
        if rank == 1:

            def forward(x):
                raise MemoryError

            dit.blocks[2].ff.forward = forward
        began = time.monotonic()
        try:
            for _ in range(5):
                step()
            results[rank] = "went on"
        except (WorkerDied, MemoryError) as error:
            results[rank] = f"{time.monotonic() - began:.1f} {type(error).__name__} {error}"
    if rank == 1:
        time.sleep(2)  # alive, but out of the round
    os._exit(0)


def _full(rank, world, port, results):
    """One rank's shared memory is too small: both learn it."""
    from talkies.errors import ConfigError
    from talkies.placement.stream.host_memory import HostBuffer

    group = join(rank, world, port)
    if rank == 1:
        real = HostBuffer.shared.__func__

        def shared(cls, path, num_bytes, *, create, pin):
            return real(cls, path, num_bytes * 2**26 if create else num_bytes, create=create, pin=pin)

        HostBuffer.shared = classmethod(shared)
    try:
        _embedded(group, share=True)
        results[rank] = "went on"
    except ConfigError as error:
        results[rank] = str(error)
    dist.destroy_process_group()


@pytest.mark.timeout(150)
def test_two_ranks_and_one_host_copy_are_bit_equal_to_resident():
    assert run(_equal) == {0: "equal", 1: "equal"}


@pytest.mark.timeout(150)
def test_a_rank_that_dies_ends_the_other_with_a_reason():
    results = run(_dies)
    assert set(results) == {0}
    seconds, _, text = results[0].partition(" ")
    assert float(seconds) < TIMEOUT_S
    assert "another rank left" in text or "rank 1 failed" in text


@pytest.mark.timeout(150)
def test_a_rank_that_raises_tells_the_other():
    results = run(_raises)
    assert "MemoryError" in results[1]
    seconds, _, text = results[0].partition(" ")
    assert float(seconds) < TIMEOUT_S + 5
    assert text.startswith("WorkerDied rank 1 failed (MemoryError")


@pytest.mark.timeout(150)
def test_shared_memory_that_is_too_small_is_said_on_every_rank():
    results = run(_full)
    assert set(results) == {0, 1}
    for text in results.values():
        assert "rank 1 cannot share its weights" in text
        assert "--shm-size" in text


def test_too_small_a_shm_is_found_before_anything_is_loaded():
    from talkies.errors import ConfigError

    with pytest.raises(ConfigError, match="/dev/shm") as caught:
        check_shm(1 << 50)
    assert "--shm-size" in caught.value.hint


def test_files_of_dead_processes_are_swept(tmp_path):
    dead, alive = tmp_path / f"{peering.PREFIX}-999999999-ab-0", tmp_path / f"{peering.PREFIX}-{os.getpid()}-ab-0"
    other = tmp_path / "something-else"
    for path in (dead, alive, other):
        path.write_bytes(b"x")
    assert peering.sweep(tmp_path) == 1
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()
