"""Adapters beside diffusers' own loader: what its mixin makes of a file, and, where PEFT is, the weights it fuses."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from talkies.adapters.fuse import Applied, FusedTensors
from talkies.adapters.named_path import NamedPath
from talkies.adapters.read import open_adapter
from talkies.h3 import dit_keys
from talkies.h3.config import DiTConfig
from talkies.h3.dit_keys import Layout
from talkies.model.weights import DiTReader
from tests.adapters import files
from tests.parity.h3 import oracle_dit

# Its converter of DiffSynth-Studio's files takes heads of 128 channels for granted.
SIZES = {"num_attention_heads": 2, "attention_head_dim": 128}
CONFIG = DiTConfig.from_dict(dict(oracle_dit(**SIZES).config))
PAIRS = files.factors(CONFIG)
PORT, STACKED = files.port_pairs(PAIRS), files.native_pairs(PAIRS, CONFIG, grouped=False)
LAYOUTS = {
    "diffusers": (files.peft(PORT, prefix="transformer."), {}),
    "LightX2V Turbo": (files.peft(PORT, infix=".default"), {"alpha": "8", "key_format": "minimax-h3-diffusers"}),
    "bare": (files.peft(STACKED), {}),
    "ai-toolkit": (files.peft(STACKED, prefix="diffusion_model."), {}),
    "musubi-tuner": (files.kohya(STACKED, 2.0), {}),
    "DiffSynth-Studio": (files.peft(files.native_pairs(PAIRS, CONFIG, grouped=True), infix=".default"), {}),
}


@pytest.fixture
def oracle(tmp_path):
    """The port's DiT, and ours of the same weights."""
    model = oracle_dit(**SIZES)
    config = {**dict(model.config), "_class_name": "MiniMaxH3Transformer3DModel"}
    (tmp_path / "config.json").write_text(json.dumps(config, default=list))
    files.save(dict(model.state_dict()), tmp_path / "diffusion_pytorch_model.safetensors")
    return model, DiTReader(tmp_path)


def ours(reader, path):
    (component,) = open_adapter(NamedPath("it", str(path))).components
    changes = open_adapter(NamedPath("it", str(path))).changes(reader.config, frozenset({component}))
    return FusedTensors(reader, [Applied("it", changes, 1.0)], dtype=None)


def check(got, weights, near=1e-6):
    """All of our tensors against a state dict of the port's names."""
    moved = 0
    for name, spec in got.source.specs.items():
        parts = [weights[key] for key in dit_keys.file_keys(name, Layout.PORT)]
        want = dit_keys.join(spec, parts, Layout.PORT, got.config)
        assert float((got.tensor(name) - want).abs().max()) <= near, name
        moved += not torch.equal(got.tensor(name), got.source.tensor(name))
    assert moved == len(PAIRS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_means_what_diffusers_converter_makes_of_it(oracle, tmp_path, name):
    from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin

    model, reader = oracle
    tensors, metadata = LAYOUTS[name]
    path = files.save(tensors, tmp_path / "it.safetensors", **metadata)
    converted = MiniMaxH3LoraLoaderMixin.lora_state_dict(str(tmp_path), weight_name=path.name)
    scale = float(metadata.get("alpha", 4)) / 4  # it leaves what a file's metadata says to PEFT
    weights = dict(model.state_dict())
    for key in converted:
        if key.endswith(".lora_A.weight"):
            module = key.removesuffix(".lora_A.weight")
            target = module.removeprefix("transformer.") + ".weight"
            weights[target] = files.dense(
                weights[target], (converted[module + ".lora_B.weight"], converted[key]), scale
            )
    check(ours(reader, path), weights)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="diffusers fuses adapters with PEFT")
@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_those_that_diffusers_fuses(oracle, tmp_path, name):
    from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin

    class Pipeline(MiniMaxH3LoraLoaderMixin):
        transformer = oracle[0]
        hf_device_map = None

        @property
        def components(self):
            return {"transformer": self.transformer}

    model, reader = oracle
    tensors, metadata = LAYOUTS[name]
    path = files.save(tensors, tmp_path / "it.safetensors", **metadata)
    Pipeline().load_lora_weights(str(tmp_path), weight_name=path.name, adapter_name="it")
    model.fuse_lora()
    weights = {key.replace(".base_layer.", "."): w for key, w in model.state_dict().items() if ".lora_" not in key}
    check(ours(reader, path), weights)
