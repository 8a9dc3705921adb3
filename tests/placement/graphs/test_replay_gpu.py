"""CUDA graphs of small forwards on a GPU: eager's bits, no waiting inside a step, memory given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import talkies
from talkies.attention import registry
from talkies.attention.base import Trimmed
from talkies.benchmarks import forward as fw
from talkies.benchmarks.random_dit import RandomDiT
from talkies.h3.packing import concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.kernels import select
from talkies.model.modulation import build_table
from talkies.model.weights import read_config
from talkies.placement.apply import runner_of
from talkies.placement.graphs.recorder import CudaRecorder
from talkies.placement.graphs.replay import Graphs
from talkies.placement.modulation_feed import ModulationFeed, pinned
from talkies.placement.quantize import QuantizeConfig
from talkies.sampling.euler import euler_step
from talkies.sampling.schedule import build_dual

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
BF16 = torch.bfloat16
EMBEDDED = read_config(Path(talkies.__file__).parent / "assets" / "h3-tiny" / "transformer")
WIDE = replace(fw.RELEASED, num_layers=2)
CLIP = fw.Shape(text=13, audio_latents=93, frames=17, height=8, width=14)
SHORT = fw.Shape(text=7, audio_latents=37, frames=7, height=8, width=14)


class Request:
    """Steps of a request, or of several in one forward, as the engine does them."""

    def __init__(self, config, shapes, *, attend="sdpa", quantize=None, graphs=None, num_sigmas=9):
        source = RandomDiT(config, CUDA, BF16)
        kernels = select.automatic(CUDA)
        self.dit = fw.make_dit(source, CUDA, BF16, attend=attend, kernels=kernels, quantize=quantize)
        self.blocks = runner_of(self.dit, graphs=graphs).blocks
        layouts = [shape.layout() for shape in shapes]
        self.layout = layouts[0] if len(layouts) == 1 else concat_layouts(layouts)
        self.schedule = build_dual(num_sigmas, video_shift=5.0)
        steps = zip(self.schedule.t_video, self.schedule.t_audio, strict=True)
        table = build_table(source, [step_plan(self.layout, v, a) for v, a in steps], CUDA)
        self.feed = ModulationFeed(pinned(table), CUDA)
        inputs = fw.make_inputs(source, shapes, CUDA, BF16)
        self.video, self.audio = inputs.video, inputs.audio
        self.view = self.dit.view(self.layout)
        self.refined = self.dit.refine_text(inputs.text, self.layout.text_documents)

    def step(self, index):
        modulation = self.feed.step(index)
        x = self.dit.embed(self.video, self.audio, self.refined, self.layout)
        x = self.blocks(x, self.view, modulation)
        video, audio = self.dit.project(x, self.layout, modulation)
        step = self.schedule.step(index)
        self.video, self.audio = euler_step(self.video, video, step.video), euler_step(self.audio, audio, step.audio)
        return self.video, self.audio

    def run(self):
        return [self.step(index) for index in range(self.schedule.num_forwards)]


def _made(*args, **kwargs):
    with torch.inference_mode():
        return Request(*args, **kwargs)


@pytest.mark.parametrize("shapes", [[CLIP], [CLIP, SHORT]], ids=["alone", "shared"])
@pytest.mark.parametrize("quantize", [None, QuantizeConfig(method="fp8")], ids=["bf16", "fp8"])
@pytest.mark.parametrize("config", [EMBEDDED, WIDE], ids=["embedded", "released-width"])
@pytest.mark.parametrize("attend", ["sdpa", "cudnn", "fa3", "fa3-fp8"])
@torch.inference_mode()
def test_every_step_is_equal_to_eager_bit_for_bit(attend, config, quantize, shapes):
    reason = registry.why_not(attend, registry.Machine.of(CUDA, BF16))
    if reason is not None:
        pytest.skip(reason)
    graphs = Graphs(CudaRecorder(CUDA))
    eager = Request(config, shapes, attend=attend, quantize=quantize)
    replayed = Request(config, shapes, attend=attend, quantize=quantize, graphs=graphs)
    want, got = eager.run(), replayed.run()
    assert graphs.replays >= 5
    assert graphs.num_graphs >= 1
    for a, b in zip(want, got, strict=True):  # kept all along: no step wrote into an earlier one's result
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
    assert torch.isfinite(got[-1][0]).all()


@pytest.mark.parametrize("attend", ["sdpa", "cudnn", "fa3", "fa3-fp8"])
@pytest.mark.parametrize("shapes", [[CLIP], [CLIP, SHORT]], ids=["alone", "shared"])
@pytest.mark.parametrize("graphed", [True, False], ids=["graph", "eager"])
@torch.inference_mode()
def test_a_warm_step_waits_for_nothing(graphed, shapes, attend):
    reason = registry.why_not(attend, registry.Machine.of(CUDA, BF16))
    if reason is not None:
        pytest.skip(reason)
    graphs = Graphs(CudaRecorder(CUDA)) if graphed else None
    request = Request(EMBEDDED, shapes, attend=attend, graphs=graphs)
    for index in range(3):
        request.step(index)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(3, request.schedule.num_forwards):
            request.step(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert graphs is None or graphs.replays >= 5


@torch.inference_mode()
def test_shapes_take_turns_in_one_pool():
    graphs = Graphs(CudaRecorder(CUDA))
    requests = [Request(EMBEDDED, shapes) for shapes in ([CLIP], [SHORT], [CLIP, SHORT])]
    want = [request.run()[-1] for request in requests]
    again = [Request(EMBEDDED, shapes, graphs=graphs) for shapes in ([CLIP], [SHORT], [CLIP, SHORT])]
    for index in range(again[0].schedule.num_forwards):
        outs = [request.step(index) for request in again]
    for a, b in zip(want, outs, strict=True):
        assert torch.equal(a[0], b[0])
    assert graphs.num_graphs >= 3


@torch.inference_mode()
def test_forgotten_graphs_give_their_memory_back():
    graphs = Graphs(CudaRecorder(CUDA))
    request = Request(WIDE, [SHORT], graphs=graphs)
    request.step(0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for index in range(1, 6):
        request.step(index)
    assert graphs.num_graphs >= 1
    assert graphs.held_bytes <= graphs.max_bytes
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() - before
    assert 0 < held <= graphs.held_bytes + (32 << 20)  # blocks of the allocator are whole segments
    graphs.forget()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # cuBLAS keeps a workspace for the stream that recorded, once a process.
    assert torch.cuda.memory_reserved() - before <= 64 << 20
    for index in (1, 2, 3):
        request.step(index)  # and it begins again, in a pool of its own
    assert graphs.num_graphs >= 1


def _used_by_another_stream():
    stream = torch.cuda.Stream()
    x = torch.empty(8 << 20, dtype=torch.uint8, device=CUDA)
    with torch.cuda.stream(stream):
        x.zero_()
    x.record_stream(stream)


@torch.inference_mode()
def test_a_recording_that_the_device_refuses_leaves_everything_usable(caplog):
    graphs = Graphs(CudaRecorder(CUDA))
    request = Request(EMBEDDED, [CLIP], graphs=graphs)
    plain = request.dit.attend

    def reads(q, k, v, documents):
        assert q.sum().item() is not None
        return plain.backend(q, k, v, documents)

    request.dit.attend = Trimmed(reads, "sdpa")
    for index in range(4):
        request.step(index)
    assert graphs.num_graphs == 0
    assert caplog.text.count("stays eager") >= 1
    _used_by_another_stream()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(8):  # as a feed's entries are: an allocator that believes in a recording would keep them all
        _used_by_another_stream()
    torch.cuda.synchronize()
    torch.zeros(1, device=CUDA)
    assert torch.cuda.memory_allocated() - before < 16 << 20
    request.dit.attend = plain
    want = _made(EMBEDDED, [CLIP])
    want.video, want.audio = request.video.clone(), request.audio.clone()
    for index in range(4, 8):
        a, b = want.step(index), request.step(index)
        assert torch.equal(a[0], b[0])
    assert graphs.num_graphs == 1
