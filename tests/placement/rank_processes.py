"""Processes with gloo on one machine, and the DiT of the embedded checkpoint that they share."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 20
CPU = torch.device("cpu")


def run(target, world=2, within_s=100.0):
    """Calls ``target(rank, port, results)`` in ``world`` processes; returns ``results``, a dict."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        results = manager.dict()
        ranks = [context.Process(target=target, args=(rank, world, port, results)) for rank in range(world)]
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


def join(rank, world, port):
    os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S))
    return dist.group.WORLD


def embedded_reader(dtype=torch.float32):
    from talkies.engine.config import embedded_folder
    from talkies.h3.partitions import find_parts
    from talkies.model.weights import DiTReader

    return DiTReader(find_parts(embedded_folder()).transformers["fl2va"], dtype=dtype)


def embedded_step(dit, reader):
    """A step of ``dit`` over rows that depend on nothing but their number."""
    from talkies.benchmarks import forward as fw
    from talkies.h3.timesteps import step_plan
    from talkies.model.modulation import build_table

    layout = fw.Shape(text=9, audio_latents=20, frames=7, height=4, width=6).layout()
    generator = torch.Generator().manual_seed(1)
    c = reader.config
    video = torch.randn(layout.num_video_rows, c.video_row_dim, generator=generator)
    audio = torch.randn(layout.num_audio_rows, c.audio_in_channels, generator=generator)
    text = torch.randn(layout.num_text, c.text_dim, generator=generator).to(dit.dtype)
    plan = step_plan(layout, torch.tensor([0.25]), torch.tensor([0.5]))
    return fw.Step(dit, fw.Inputs(layout, video, audio, text, None, None, build_table(reader, [plan]).step(0)))
