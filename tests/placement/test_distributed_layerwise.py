"""Two processes with gloo share one host copy: bit-equal to resident, and no wait without end."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from talkies.placement import distributed_layerwise as dlo
from talkies.placement.host import check_shm

WORLD = 2
TIMEOUT_S = 20


def _port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _join(rank, port):
    os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(seconds=TIMEOUT_S))
    return dist.group.WORLD


def _embedded(group, *, share):
    """The DiT of the embedded checkpoint and its inputs."""
    from talkies.attention import registry
    from talkies.benchmarks import forward as fw
    from talkies.codecs.checkpoint import find_parts
    from talkies.engine.config import embedded_folder
    from talkies.model.modulation import build_table
    from talkies.model.weights import DiTReader, build_dit

    cpu = torch.device("cpu")
    reader = DiTReader(find_parts(embedded_folder()).transformers["fl2va"], dtype=torch.float32)
    shared = dlo.SharedBlocks(group, pin=False) if share else None

    def settle(name, block):
        if share and name.startswith("blocks."):
            shared.settle(int(name.split(".")[1]), block)

    dit = build_dit(reader, attend=registry.create("sdpa"), adaln=False, settle=settle)
    streamed = None
    if share:
        shared.publish()
        blocks = list(dit.blocks)
        streamed = dlo.stream_shared(blocks, shared, range(len(blocks)), group, cpu)
    layout = fw.Shape(text=9, audio_latents=20, frames=7, height=4, width=6).layout()
    generator = torch.Generator().manual_seed(1)
    c = reader.config
    video = torch.randn(layout.num_video_rows, c.video_row_dim, generator=generator)
    audio = torch.randn(layout.num_audio_rows, c.audio_in_channels, generator=generator)
    text = torch.randn(layout.num_text, c.text_dim, generator=generator)
    plan = layout.step_plan(torch.tensor([0.25]), torch.tensor([0.5]))
    inputs = fw.Inputs(layout, video, audio, text, None, None, build_table(reader, [plan]).step(0))
    return dit, streamed, fw.Step(dit, inputs)


def _equal(rank, port, results):
    group = _join(rank, port)
    with torch.inference_mode():
        expected = _embedded(group, share=False)[2]()
        dit, streamed, step = _embedded(group, share=True)
        for _ in range(2):
            assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
        # One copy: this rank's parameters are a mapping of a file that both map and that has no name any more.
        weight = dit.blocks[0].attn.to_qkv.weight
        with open("/proc/self/maps") as maps:
            lines = [line for line in maps if dlo.PREFIX in line]
        starts = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in lines]
        assert any(a <= weight.data_ptr() < b for a, b in starts)
        assert all("(deleted)" in line for line in lines)
        if rank == 0:  # what one writes the other one reads
            weight.fill_(3.0)
        dist.barrier()
        assert float(weight.max()) == 3.0
        dist.barrier()
        streamed.close()
    results[rank] = "equal"
    dist.destroy_process_group()


def _dies(rank, port, results):
    from talkies.errors import WorkerDied

    group = _join(rank, port)
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


def _raises(rank, port, results):
    from talkies.errors import WorkerDied

    group = _join(rank, port)
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


def _full(rank, port, results):
    """One rank's shared memory is too small: both learn it."""
    from talkies.errors import ConfigError
    from talkies.placement.host import HostBuffer

    group = _join(rank, port)
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


def _run(target, within_s=100.0):
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        results, port = manager.dict(), _port()
        ranks = [context.Process(target=target, args=(rank, port, results)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + within_s
        for process in ranks:
            process.join(max(0.1, deadline - time.monotonic()))
        stuck = [process for process in ranks if process.is_alive()]
        for process in stuck:
            process.kill()
        assert not stuck, "a rank hangs"
        return dict(results)


@pytest.mark.timeout(150)
def test_two_ranks_and_one_host_copy_are_bit_equal_to_resident():
    assert _run(_equal) == {0: "equal", 1: "equal"}


@pytest.mark.timeout(150)
def test_a_rank_that_dies_ends_the_other_with_a_reason():
    results = _run(_dies)
    assert set(results) == {0}
    seconds, _, text = results[0].partition(" ")
    assert float(seconds) < TIMEOUT_S
    assert "another rank left" in text or "rank 1 failed" in text


@pytest.mark.timeout(150)
def test_a_rank_that_raises_tells_the_other():
    results = _run(_raises)
    assert "MemoryError" in results[1]
    seconds, _, text = results[0].partition(" ")
    assert float(seconds) < TIMEOUT_S + 5
    assert text.startswith("WorkerDied")


@pytest.mark.timeout(150)
def test_shared_memory_that_is_too_small_is_said_on_every_rank():
    results = _run(_full)
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
    dead, alive = tmp_path / f"{dlo.PREFIX}-999999999-ab-0", tmp_path / f"{dlo.PREFIX}-{os.getpid()}-ab-0"
    other = tmp_path / "something-else"
    for path in (dead, alive, other):
        path.write_bytes(b"x")
    assert dlo.sweep(tmp_path) == 1
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()
