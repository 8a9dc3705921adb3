"""The text encoder inside an engine: e4m3 in every residence, the refiner once a request, what a load says."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from talkies import Engine, Target, VideoRequest
from talkies.cli import app
from talkies.engine.config import EngineConfig
from talkies.engine.load.load_report import rate
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.resume import ResumeFile
from talkies.errors import ConfigError
from talkies.files.tensor_files import TensorFiles
from talkies.kernels.fp8 import E4M3
from tests.engine.worker.test_loop import Rig

PROMPT = "a red ball bounces slowly on a dark background with a bell sound"
REQUEST = VideoRequest(prompt=PROMPT, num_sigmas=4, target=Target(num_frames=22))


@pytest.fixture(scope="module")
def fp8_engine():
    return Engine.open(text_quantization="fp8")


def _states(engine):
    components = engine.components
    components._memo.clear()
    return components.encode_text(PROMPT, []).states


def test_the_text_encoder_alone_becomes_e4m3(fp8_engine, embedded_engine):
    c = fp8_engine.components
    assert any(p.dtype == E4M3 for p in c.text.encoder.model.parameters())
    assert not any(p.dtype == E4M3 for dit in c.dits.values() for p in dit.parameters())
    want, got = _states(embedded_engine), _states(fp8_engine)
    assert 1e-3 < ((got - want).norm() / want.norm()).item() < 0.035


@pytest.mark.parametrize("offload", ["layer", "module"])
def test_e4m3_streams_and_leaves_bit_for_bit(offload, fp8_engine):
    engine = Engine.open_config(EngineConfig(text_quantization="fp8", offload=offload, offload_components=("text",)))
    c = engine.components
    assert c.placement.residences.text == {"layer": "streamed", "module": "evicted"}[offload]
    assert torch.equal(_states(engine), _states(fp8_engine))
    c.residency.release()
    assert torch.equal(_states(engine), _states(fp8_engine))  # it came back


def test_an_exclusion_is_about_one_of_the_two():
    config = EngineConfig(
        quantization="fp8",
        text_quantization="fp8",
        quantization_exclude=("blocks.0.*", "text_encoder.layers.0.*"),
    )
    assert config.quantize.exclude == ("blocks.0.*",)
    assert config.text_quantize.exclude == ("text_encoder.layers.0.*",)
    layers = Engine.open_config(config).components.text.encoder.model.language_model.layers
    assert layers[0].mlp.up_proj.weight.dtype == torch.float32
    assert layers[1].mlp.up_proj.weight.dtype == E4M3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"text_quantization": "int4"}, r"text_quantization='int4'.*none or fp8"),
        ({"quantization_exclude": ("text_encoder.layers.0.*",)}, "but text_quantization is none"),
        ({"quantization_exclude": ("blocks.0.*",)}, "but quantization is none"),
        ({"text_quantization": "fp8", "quantization_exclude": ("text_encoder.layer.0.*",)}, "no linear is called"),
    ],
)
def test_what_cannot_be_met_is_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        Engine.open_config(EngineConfig(**values))


# The refiner.


@pytest.fixture
def refined(monkeypatch, embedded_engine):
    """Counts the passes of the refiner of every DiT."""
    from talkies.model.dit import PackedDiT

    calls, real = [], PackedDiT.refine_text

    def refine_text(self, states, documents=None):
        calls.append(tuple(states.shape))
        return real(self, states, documents)

    monkeypatch.setattr(PackedDiT, "refine_text", refine_text)
    c = embedded_engine.components  # its runners were made before
    for partition, runner in c.runners.items():
        monkeypatch.setitem(c.runners, partition, replace(runner, refine_text=c.dits[partition].refine_text))
    return calls


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_the_refiner_runs_once_a_request(num_outputs, refined, embedded_engine):
    clips = embedded_engine.generate_all(REQUEST.replace(num_outputs=num_outputs))
    assert len(clips) == num_outputs
    assert len(refined) == 1


def test_each_output_is_what_it_is_alone(embedded_engine):
    both = embedded_engine.generate_all(REQUEST.replace(num_outputs=2, seed=5))
    alone = embedded_engine.generate(REQUEST.replace(seed=6))
    assert (both[1].frames == alone.frames).all()


def test_a_resumed_request_refines_once_more_and_no_step_does(refined, tiny_folder, tmp_path):
    rig = Rig(tiny_folder, tmp_path, save_every_s=0.0)
    job = rig.job("a", num_sigmas=6)
    refined.clear()  # of the warm-up

    def stop_half_way(event):
        if event.kind == "progress" and event.stage == "denoise" and event.step == 2:
            rig.inbox.put(None)

    rig.run(job, on_event=stop_half_way)
    assert len(refined) == 1
    assert ResumeFile(folder=job.resume_dir, request=job.request, model_hash=rig.messages[0].info.model_hash).load()
    after = Rig(tiny_folder, tmp_path)
    refined.clear()
    assert "resumed" in after.run(job)[0]
    assert after.last("a").kind == "finished"
    assert 0 < after.forwards("a") < 5
    assert len(refined) == 1


# Loading.


def test_adaln_matrices_are_read_once_a_schedule_and_kept_by_nobody(embedded_engine, monkeypatch):
    engine = Engine.open()
    c = engine.components
    ((partition, reader), *_) = c.readers.items()
    read, matrices = [], weakref.WeakSet()
    real = reader.files.tensor

    def tensor(key):
        found = real(key)
        read.append(key)
        matrices.add(found)
        return found

    monkeypatch.setattr(reader.files, "tensor", tensor)
    c.tables._tables.clear()
    state = pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, REQUEST)))
    adaln = [key for key in read if "adaln" in key]
    assert len(adaln) == len(set(adaln)) >= 2 * reader.config.num_layers  # once each, though there are many steps
    assert state.num_forwards == 3
    gc.collect()
    assert not matrices
    assert not any("adaln" in name for name, _ in c.dits[partition].named_parameters())
    read.clear()
    pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, REQUEST.replace(seed=9, prompt="a bell"))))
    assert read == []  # the schedule is known
    pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, REQUEST.replace(num_sigmas=5))))
    assert sorted(key for key in read if "adaln" in key) == sorted(adaln)


def test_a_load_says_what_each_component_read(caplog):
    with caplog.at_level(logging.INFO, logger="talkies.engine.load.load_report"):
        engine = Engine.open()
    lines = [r.getMessage() for r in caplog.records if r.name == "talkies.engine.load.load_report"]
    assert lines[0].startswith("attention sdpa, kernels reference, quantization none, ")
    assert lines[0].endswith(" on cpu; text encoder: attention sdpa, quantization none")
    loaded = [line.partition(" loaded: ")[0] for line in lines if " loaded: " in line]
    assert loaded == ["DiT fl2va", "DiT ref2va", "text encoder", "audio VAE", "weights"]
    c = engine.components
    stored = {
        partition: {k: e.stop - e.start for k, e in TensorFiles(folder).keys.items()}
        for partition, folder in c.parts.transformers.items()
    }
    for partition, sizes in stored.items():
        wanted = sum(n for k, n in sizes.items() if "adaln" not in k and not k.startswith("norm_out.linear"))
        assert c.readers[partition].files.bytes_asked == wanted
    assert c.loading.num_bytes == c.audio.bytes_read + c.text.encoder.bytes_read + sum(
        r.files.bytes_asked for r in c.readers.values()
    )
    assert c.video.bytes_read > 1e6
    assert c.loading.num_bytes > c.video.bytes_read


def test_a_rate_in_words():
    assert rate(51_500_000_000, 12.3) == "51.50 GB in 12.3 s, 4.19 GB/s"
    assert rate(2_100_000, 0.9) == "2.1 MB in 0.9 s, 2.3 MB/s"
    assert rate(0, 0.0) == "0.0 MB in 0.0 s, 0.0 MB/s"


def test_a_worker_sends_its_lines(tiny_folder, tmp_path):
    from talkies.engine.port.messages import Line

    rig = Rig(tiny_folder, tmp_path)
    lines = [m.text for m in rig.messages if isinstance(m, Line)]
    assert any(line.startswith("text encoder loaded: ") for line in lines)


def test_generate_shows_them_when_asked(tmp_path, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    options = ["--steps=3", "--frames=22", "--text-quantization=fp8", "--log-level=info", "--json"]
    result = CliRunner().invoke(app, ["generate", PROMPT, f"--output={tmp_path / 'a.mp4'}", *options])
    assert result.exit_code == 0, result.output
    assert "quantization fp8" in result.stderr
    assert "text encoder loaded: " in result.stderr
    assert json.loads(result.stdout.strip().splitlines()[-1])["frames"] == 22
