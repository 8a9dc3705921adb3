"""Both disk layouts of one checkpoint make the same clip, and the round trip keeps every bit."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from talkies import Engine
from talkies.engine.load import convert as converting
from talkies.engine.load.convert import convert
from talkies.errors import CheckpointError, ConfigError, OutputError
from talkies.request import Target, VideoRequest

REQUEST = VideoRequest(prompt="x", num_sigmas=3, target=Target(num_frames=22))
PARTS = ("transformer", "vae", "audio_vae", "text_encoder")


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            found.update({key: f.get_tensor(key) for key in f.keys()})  # noqa: SIM118 - not a mapping
    return found


@pytest.fixture(scope="module")
def original(tiny_folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("convert") / "original"
    convert(tiny_folder, target, to="original")
    return target


def test_the_original_layout_makes_the_same_clip(tiny_folder, original):
    assert (original / "FL2VA" / "video_vae" / "source" / "model.safetensors").is_file()
    port, ours = Engine.open(tiny_folder).generate(REQUEST), Engine.open(original).generate(REQUEST)
    assert np.array_equal(port.frames, ours.frames)
    assert np.array_equal(port.audio, ours.audio)


def test_the_round_trip_is_bit_equal(tiny_folder, original, tmp_path, monkeypatch):
    monkeypatch.setattr(converting, "SHARD_BYTES", 100_000)  # several shards and an index
    convert(original, tmp_path / "port", to="port")
    assert (tmp_path / "port" / "transformer" / "diffusion_pytorch_model.safetensors.index.json").is_file()
    for part in PARTS:
        before, after = tensors(tiny_folder / part), tensors(tmp_path / "port" / part)
        assert before.keys() == after.keys(), part
        for key, tensor in before.items():
            assert tensor.dtype == after[key].dtype, key
            assert (tensor == after[key]).all(), key
    scheduler = json.loads((tmp_path / "port" / "audio_scheduler" / "scheduler_config.json").read_text())
    assert scheduler["shift"] == 3.0


def test_shards_load_like_one_file(tiny_folder, original, tmp_path, monkeypatch):
    monkeypatch.setattr(converting, "SHARD_BYTES", 100_000)
    convert(original, tmp_path / "port", to="port")
    assert np.array_equal(
        Engine.open(tmp_path / "port").generate(REQUEST).frames, Engine.open(tiny_folder).generate(REQUEST).frames
    )


def test_refusals_leave_nothing_behind(tiny_folder, tmp_path):
    with pytest.raises(ConfigError, match="already has the port layout"):
        convert(tiny_folder, tmp_path / "x", to="port")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="lacks"):
        convert(tmp_path / "empty", tmp_path / "x", to="original")
    with pytest.raises(ConfigError, match="exists"):
        convert(tiny_folder, tmp_path / "empty", to="original")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty"]


def test_a_full_disk_is_an_output_error(tiny_folder, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converting, "save_file", full)
    with pytest.raises(OutputError, match="cannot write"):
        convert(tiny_folder, tmp_path / "x", to="original")
    assert list(tmp_path.iterdir()) == []
