"""Where weights live changes nothing that a client sees: the embedded checkpoint, bit for bit."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from talkies import Engine, Target, VideoRequest
from talkies.capacity.cost import CostModel
from talkies.engine.config import EngineConfig
from talkies.engine.load import planning
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker import memory_model as footprint
from talkies.engine.worker.batching import Batcher
from talkies.errors import Cancelled, ConfigError, OutOfMemory
from talkies.placement.components import Residences, Residency

REQUEST = VideoRequest(prompt="a red ball bounces slowly", num_sigmas=4, target=Target(num_frames=22), seed=5)


def _digest(clip):
    return hashlib.sha256(clip.frames.tobytes() + clip.audio.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def expected(embedded_engine):
    return _digest(embedded_engine.generate(REQUEST))


@pytest.fixture(scope="module")
def streamed_engine():
    return Engine.open_config(EngineConfig(offload="layer"))


def test_everything_streamed_is_bit_equal(streamed_engine, expected):
    engine = streamed_engine
    assert engine.components.placement.residences != Residences()
    assert engine.components.residency.device_bytes("dit.fl2va") > 0
    for _ in range(2):  # the second one starts with what the first one left
        assert _digest(engine.generate(REQUEST)) == expected
        engine.components._memo.clear()
    assert engine.components.residency.host_bytes > 10e6


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(offload="module"),
        EngineConfig(offload="layer", offload_components=("dit",), resident_blocks=2),
    ],
    ids=["module", "dit"],
)
def test_any_choice_is_bit_equal(config, expected):
    assert _digest(Engine.open_config(config).generate(REQUEST)) == expected


def test_module_is_about_every_component_that_is_named():
    fixed = planning._fixed(EngineConfig(offload="module"))
    assert fixed.dit is not None
    assert {fixed.text, fixed.video, fixed.audio} == {"evicted"}
    fixed = planning._fixed(EngineConfig(offload="module", offload_components=("text",)))
    assert (fixed.dit, fixed.text, fixed.video) == (None, "evicted", "resident")


def test_one_component_at_a_time_holds_the_device(streamed_engine):
    c = streamed_engine.components
    seen = []
    real = c.residency.enter

    def enter(group):
        real(group)
        open_groups = {name for name, streams in c.residency._groups.items() if any(s.is_open for s in streams)}
        assert open_groups <= {group}
        seen.append(group)

    c.residency.enter = enter
    try:
        c._memo.clear()
        streamed_engine.generate(REQUEST)
    finally:
        del c.residency.enter
    order = list(dict.fromkeys(group for group in seen if group))  # "" is a release
    assert order == ["text", "dit.fl2va.refiner", "dit.fl2va", "audio", "video"]
    c.residency.release()
    assert not any(s.is_open for streams in c.residency._groups.values() for s in streams)


def test_the_video_encoder_is_counted_before_it_is_loaded(streamed_engine):
    c = replace(streamed_engine.components, residency=Residency())
    assert not c.video.encoder_is_loaded
    before = footprint._visits(c)
    c.video.load_encoder()
    weights = sum(p.nbytes for p in c.video._encoder.parameters())
    assert c.video.encoder_bytes() == before.encode == weights
    # Buffers start at multiples of 256 bytes; a slot for the small quant_conv is not as large as the encoder's.
    tensors = sum(1 for _ in c.video._encoder.parameters())
    assert weights <= footprint._visits(c).encode <= weights + 256 * tensors
    assert c.residency.device_bytes("video.encoder") == footprint._visits(c).encode
    c.residency.close()


def test_a_resident_video_encoder_is_kept_room_for_until_it_is_there(embedded_engine):
    c = replace(embedded_engine.components, residency=Residency())
    assert footprint._visits(c).encode == 0
    before = footprint._reserve(c)
    words = replace(c, limits=replace(c.limits, tasks=("t2va",)))
    assert before - footprint._reserve(words) == c.video.encoder_bytes()
    c.video.load_encoder()
    assert before - footprint._reserve(c) == c.video.encoder_bytes()


def test_parts_of_the_audio_vae_take_what_they_are(streamed_engine):
    c = streamed_engine.components
    parameters = list(c.audio.model.parameters())
    weights = sum(p.nbytes for p in parameters)
    assert weights <= c.residency.device_bytes("audio") <= weights + 256 * len(parameters)


def test_out_of_memory_in_a_streamed_block_fails_that_job_alone(streamed_engine, expected, monkeypatch):
    block = streamed_engine.components.dits["fl2va"].blocks[2]
    real, calls = block.ff.forward, []

    def forward(x):
        calls.append(x.shape)
        if len(calls) == 2:  # in the second step
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return real(x)

    monkeypatch.setattr(block.ff, "forward", forward)
    with pytest.raises(OutOfMemory) as caught:
        streamed_engine.generate(REQUEST)
    assert caught.value.code == "out_of_memory"
    monkeypatch.undo()
    assert _digest(streamed_engine.generate(REQUEST)) == expected


@pytest.mark.parametrize(("group", "last"), [("dit.fl2va", 2), ("video", 1)])
def test_a_slot_that_cannot_be_had_fails_that_job_alone(streamed_engine, expected, monkeypatch, group, last):
    residency = streamed_engine.components.residency
    residency.release()
    size = residency._groups[group][0].slot_bytes
    real, asked = torch.empty, []

    def empty(*args, **kwargs):
        if args[:1] == (size,) and kwargs.get("dtype") == torch.uint8:
            asked.append(size)
            if len(asked) == last:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(*args, **kwargs)

    monkeypatch.setattr("talkies.placement.stream.layerwise.torch.empty", empty)
    with pytest.raises(OutOfMemory):
        streamed_engine.generate(REQUEST)
    assert len(asked) == last
    assert not any(s.is_open for streams in residency._groups.values() for s in streams)
    monkeypatch.undo()
    assert _digest(streamed_engine.generate(REQUEST)) == expected


def _state(engine, prompt, seed):
    c = engine.components
    request = REQUEST.replace(prompt=prompt, seed=seed)
    return pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, request)))


def test_a_shared_forward_streams(streamed_engine, embedded_engine):
    latents = []
    for engine in (embedded_engine, streamed_engine):
        states = [_state(engine, "a red ball", 1), _state(engine, "a blue cube falls", 2)]
        batcher = Batcher(engine.components)
        for _ in range(2):
            batcher.step(states)
        latents.append([state.video_rows.clone() for state in states])
    assert all(torch.equal(a, b) for a, b in zip(*latents, strict=True))


def test_requests_that_take_turns_between_stages_stay_bit_equal(streamed_engine, embedded_engine):
    """A decodes while B denoises and C is encoded: weights come and go between every two units."""
    found = []
    for engine in (embedded_engine, streamed_engine):
        c = engine.components
        a, b = _state(engine, "a red ball", 1), _state(engine, "a green ball", 2)
        while not a.done:
            denoise_step(c, a)
        frames = []
        chunks = pipeline.decode_video(c, a)
        while (chunk := next(chunks, None)) is not None:
            frames.append(chunk)
            if not b.done:
                denoise_step(c, b)
            c._memo.clear()
            text = c.encode_text(f"a bell {len(frames)}", [])
        found.append((np.concatenate(frames), b.video_rows.numpy(), text.states.numpy()))
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_a_cancelled_request_leaves_the_stream_whole(streamed_engine, expected):
    done = []

    def should_stop():
        return (done[-1].stage, done[-1].step) == ("denoise", 2)

    with pytest.raises(Cancelled):
        streamed_engine.generate(REQUEST, on_progress=done.append, should_stop=should_stop)
    assert _digest(streamed_engine.generate(REQUEST)) == expected


def test_the_worker_survives_a_job_without_memory(streamed_engine, expected, tmp_path, monkeypatch):
    """Out of memory inside a streamed block: that job fails by name, everything is given back, the next one is well."""
    from talkies.engine.load import build
    from talkies.engine.worker import loop as worker
    from tests.engine.worker.test_loop import Rig

    components = streamed_engine.components
    monkeypatch.setattr(build, "load", lambda config, **_: components)
    monkeypatch.setattr(worker, "warm_up", lambda c, **_: CostModel.fit([(100, 0.1)], pixel_s=1e-9, begin_s=0.1))
    rig = Rig("h3-tiny", tmp_path)
    block = components.dits["fl2va"].blocks[3]
    real, calls = block.attn.forward, []

    def forward(*args):
        calls.append(1)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*args)

    monkeypatch.setattr(block.attn, "forward", forward)
    residency, released = components.residency, []
    real_release = residency.release

    def release():
        real_release()
        released.append(rig.kinds("bad")[-1:] == ["failed"])

    monkeypatch.setattr(residency, "release", release)
    kinds = rig.run(rig.job("bad", REQUEST), rig.job("good", REQUEST))
    assert [k[-1] for k in kinds] == ["failed", "finished"]
    assert rig.last("bad").error["code"] == "out_of_memory"
    assert any(released)
    assert rig.worker._runs == {}


def test_fp8_streams(monkeypatch):
    clips = [
        Engine.open_config(EngineConfig(quantization="fp8", offload=offload)).generate(REQUEST)
        for offload in ("none", "layer")
    ]
    assert np.array_equal(clips[0].frames, clips[1].frames)
    assert np.array_equal(clips[0].audio, clips[1].audio)


# Budgets.


def test_sizes_of_the_embedded_checkpoint_are_its_weights(embedded_engine):
    c = embedded_engine.components
    sizes = planning.sizes_of(c.parts, on_gpu=False, dtype=torch.float32)
    from talkies.capacity import weight_bytes as wb

    dit = sum(p.nbytes for one in c.dits.values() for p in one.parameters())
    assert wb.dit_weights(sizes, planning.Wishes().quantize, None).fixed == pytest.approx(dit, rel=0.02)
    decoder = sum(p.nbytes for p in c.video.decoder.parameters())
    assert wb.video_weights(sizes, "resident").fixed == pytest.approx(decoder, rel=0.02)
    vision = c.text.encoder.model.visual
    assert sizes.text.num_vision_layers == len(vision.blocks)
    assert sizes.text.vision_layer_parameters == sum(p.numel() for p in vision.blocks[0].parameters())
    audio = sum(p.nbytes for p in c.audio.model.parameters())
    assert wb.audio_weights(sizes, "resident").fixed == pytest.approx(audio, rel=0.05)


def test_a_ram_budget_that_is_too_small_names_the_smallest():
    with pytest.raises(ConfigError, match="ram_budget=16 MiB") as caught:
        Engine.open_config(EngineConfig(ram_budget=16 << 20))
    least = int(caught.value.hint.split("MiB")[0].split("=")[-1])
    assert 20 < least < 2000
    assert Engine.open_config(EngineConfig(ram_budget=least << 20)).components.placement.residences == Residences()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"vram_budget": 1 << 30, "device": "cpu"}, "vram_budget"),
        ({"offload": "sometimes"}, "offload"),
        ({"offload": "none", "resident_blocks": 3}, "exclude"),
        ({"offload_components": ("unet",)}, "unet"),
        ({"ram_budget": 0}, "ram_budget"),
        ({"resident_blocks": -1}, "negative"),
    ],
)
def test_what_makes_no_sense_is_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        Engine.open_config(EngineConfig(**values))
