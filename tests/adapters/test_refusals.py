"""What is no adapter of this DiT is refused by name, before a weight of a checkpoint is read."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from talkies.adapters.named_path import NamedPath
from talkies.adapters.read import open_adapter
from talkies.errors import CheckpointError, ConfigError
from tests.adapters import files
from tests.model.tiny import CONFIG

PAIRS = files.port_pairs(files.factors(CONFIG))
GOOD = files.peft(PAIRS, prefix="transformer.")
ONE = "transformer.transformer_blocks.0.attn.to_q"
UNREAD = frozenset({None, "transformer"})


def changes(path):
    return open_adapter(NamedPath("it", str(path))).changes(CONFIG, UNREAD)


def without(*keys):
    return {key: tensor for key, tensor in GOOD.items() if key not in keys}


CASES = {
    "another model": (
        {"lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": torch.ones(4, 8)},
        "no adapter of a MiniMax-H3 DiT: none of its 1 keys",
    ),
    "an unknown key": (
        GOOD | {"transformer.extra.lora_A.weight": torch.ones(4, 8)},
        "'transformer.extra.lora_A.weight' names no",
    ),
    "too many blocks": (
        GOOD | {f"transformer.transformer_blocks.9.attn.to_q.lora_{x}.weight": torch.ones(4, 4) for x in "AB"},
        r"transformer_blocks.9.attn.to_q.lora_A.weight' names no tensor of this DiT \(2 of its",
    ),
    "half a pair": (without(ONE + ".lora_B.weight"), "attn.to_q.lora_A.weight' lacks its other half, lora_B"),
    "the other half": (without(ONE + ".lora_A.weight"), "attn.to_q.lora_B.weight' lacks its other half, lora_A"),
    "a lone alpha": (GOOD | {"transformer.proj_in.alpha": torch.tensor(1.0)}, "proj_in.alpha' has no pair of matrices"),
    "an alpha of two": (GOOD | {ONE + ".alpha": torch.ones(2)}, r"alpha' has shape \[2\], and is to be one number"),
    "a wrong size": (
        GOOD | {ONE + ".lora_A.weight": torch.ones(4, CONFIG.hidden_size + 1)},
        rf"has shape \[4, {CONFIG.hidden_size + 1}\], this DiT takes \[4, {CONFIG.hidden_size}\]",
    ),
    "ranks that differ": (GOOD | {ONE + ".lora_B.weight": torch.ones(CONFIG.inner_dim, 5)}, "lora_B.weight' has shape"),
    "no rank": (GOOD | {ONE + ".lora_A.weight": torch.ones(0, CONFIG.hidden_size)}, "lora_A.weight' has shape"),
    "a stack": (GOOD | {ONE + ".lora_A.weight": torch.ones(1, 4, CONFIG.hidden_size)}, "lora_A.weight' has shape"),
    "integers": (
        GOOD | {ONE + ".lora_A.weight": torch.ones(4, CONFIG.hidden_size, dtype=torch.int8)},
        "int8, not a float",
    ),
    "NaN": (
        GOOD | {ONE + ".lora_B.weight": torch.full((CONFIG.inner_dim, 4), float("nan"))},
        "lora_B.weight' holds NaN or Inf",
    ),
    "infinity": (
        GOOD | {"transformer.proj_in.diff_b": torch.full((CONFIG.hidden_size,), float("inf"))},
        "diff_b' holds NaN or Inf",
    ),
    "a pair and a replacement": (
        GOOD | {ONE + ".set_weight": torch.ones(CONFIG.inner_dim, CONFIG.hidden_size)},
        "takes the place of",
    ),
    "twice": (GOOD | {ONE + ".lora_down.weight": torch.ones(4, CONFIG.hidden_size)}, "are about the same tensor"),
    "sparse gates": (
        GOOD | {"transformer_blocks.0.attn.to_gate_compress.set_weight": torch.ones(2, 2)},
        "gate of a sparse attention .* dense-datafree/adapter_model.safetensors",
    ),
    "DoRA": (GOOD | {ONE + ".lora_magnitude_vector.weight": torch.ones(4)}, "DoRA"),
    "LoKr": ({"lora_unet_blocks_0_mlp_fc1.lokr_w1": torch.ones(2, 2)}, "LoKr"),
    "the text encoder's": ({"text_encoder.model.layers.0.mlp.lora_A.weight": torch.ones(2, 2)}, "text encoder"),
    "a bias of PEFT": (GOOD | {ONE + ".lora_B.bias": torch.ones(4)}, "lora_B.bias' names no"),
    "PDD's bank of heads": (
        GOOD | {"proj_out.weight": torch.ones(8, CONFIG.video_row_dim, CONFIG.hidden_size)},
        "bank of 8 output heads",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_file_is_refused_by_name(tmp_path, name):
    tensors, words = CASES[name]
    path = files.save(tensors, tmp_path / "it.safetensors")
    with pytest.raises(CheckpointError, match=words) as caught:
        changes(path)
    assert caught.value.hint
    assert str(path) in str(caught.value)


def test_the_good_one_is_taken(tmp_path):
    assert len(changes(files.save(GOOD, tmp_path / "it.safetensors")).pieces) == len(files.modules(CONFIG))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt"])
def test_a_pickle_is_never_opened(tmp_path, suffix):
    path = tmp_path / f"it{suffix}"
    torch.save({"a": torch.ones(1)}, path)
    for given in (path, path.rename(tmp_path / "it.safetensors")):
        with pytest.raises(CheckpointError, match="is a pickle, which can run code"):
            open_adapter(NamedPath("it", str(given)))


def test_a_folder_of_a_pickle_is_refused_and_one_beside_safetensors_is_not(tmp_path):
    torch.save({}, tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin is a pickle"):
        open_adapter(NamedPath("it", str(tmp_path)))
    files.save(GOOD, tmp_path / "adapter_model.safetensors")
    assert changes(tmp_path).pieces


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = files.save(GOOD, tmp_path / "it.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"it.safetensors is not a whole safetensors file"):
        open_adapter(NamedPath("it", str(path)))


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"a": 3}', b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}']
)
def test_a_damaged_header_is_refused(tmp_path, header):
    path = tmp_path / "it.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        open_adapter(NamedPath("it", str(path)))


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone.safetensors does not exist"):
        open_adapter(NamedPath("it", str(tmp_path / "gone.safetensors")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x.safetensors", "is not NAME=PATH"),
        ("=x", "is not NAME=PATH"),
        ("a b=x", "adapter name 'a b' is not a name"),
        ("a=x:1e9", None),
        ("a=x:1000", "strength 1000.0 is outside -100..100"),
        (3, "is not NAME=PATH"),
    ],
)
def test_the_option_names_what_is_wrong(text, words):
    if words is None:
        assert NamedPath.parse(text) == NamedPath("a", "x:1e9", 1.0)  # no strength, but a path with a colon
        return
    with pytest.raises(ConfigError, match=words) as caught:
        NamedPath.parse(text)
    assert caught.value.param == "adapters"


def test_the_option_takes_paths_with_colons_and_strengths():
    assert NamedPath.parse("a=C:/x.safetensors") == NamedPath("a", "C:/x.safetensors", 1.0)
    assert NamedPath.parse("a=b=c:0.5") == NamedPath("a", "b=c", 0.5)
    assert NamedPath.parse("film-2=/x/y.safetensors:-1.25") == NamedPath("film-2", "/x/y.safetensors", -1.25)
    assert NamedPath.parse("a=x:0") == NamedPath("a", "x", 0.0)


# What a file says of itself.


def contract(tmp_path, *, name="it.safetensors", sidecar=None, beside=None, **metadata):
    path = files.save(GOOD, tmp_path / name, **metadata)
    if sidecar is not None:
        path.with_suffix(".json").write_text(json.dumps(sidecar))
    for other, values in (beside or {}).items():
        (tmp_path / other).write_text(json.dumps(values))
    return open_adapter(NamedPath("it", str(path))).contract


@pytest.mark.parametrize(
    ("sidecar", "words"),
    [
        ({"steps": 4}, "steps is '4' .give one of alpha"),
        ({"base_schedule": [1.0, 0.5]}, "fall strictly"),
        ({"base_schedule": [0.5, 0.7, 0]}, "fall strictly"),
        ({"base_schedule": "fast"}, "a list of numbers"),
        ({"base_schedule": [1.0, 0.5, 0.0], "num_forwards": 3}, "num_forwards is '3' .give 2, as its positions say"),
        ({"num_forwards": 0}, "num_forwards is '0'"),
        ({"num_forwards": 2.5}, "a whole number"),
        ({"num_forwards": 4, "flow_shift": -1}, "positive numbers"),
        ({"tasks": ["t2v"]}, "tasks is .*t2v"),
        ({"alpha": 0}, "alpha is '0.0'"),
        ({"alpha": "much"}, "a finite number"),
        ({"qkv_layout": "split"}, "grouped or stacked"),
        ({"guidance_scale": 3.5}, "guidance_scale is 3.5, and every request runs without guidance"),
    ],
)
def test_a_sidecar_that_is_wrong_names_its_key(tmp_path, sidecar, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        contract(tmp_path, sidecar=sidecar)
    assert "it.json" in str(caught.value)


def test_a_dora_config_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="DoRA"):
        contract(tmp_path, beside={"adapter_config.json": {"use_dora": True, "r": 4}})


def test_steps_are_read_where_publishers_write_them(tmp_path):
    def ladder(folder, **kwargs):
        (tmp_path / folder).mkdir()
        found = contract(tmp_path / folder, **kwargs)
        steps = found.ladder
        return found.tasks, steps and (steps.num_forwards, steps.base, steps.video_shift, steps.audio_shift)

    fast4 = (0.999, 0.749, 0.5, 0.25, 0.0)
    assert ladder("plain") == (None, None)
    flashgen = {"base_schedule": "1.0, 0.7, 0.4, 0.15, 0.0", "tasks": "t2va", "lora_alpha": "64"}
    assert ladder("flashgen", **flashgen) == (("t2va",), (4, (1.0, 0.7, 0.4, 0.15, 0.0), None, None))
    fasth3 = {
        "format": "fastvideo-lora-v2",
        "finetuned_model": "FastVideo/FastVideo-FastH3-4-step-Preview-v1-Dense-DataFree",
    }
    assert ladder("fasth3", **fasth3) == (("t2va",), (4, fast4, 12.0, 3.0))
    v2 = {
        "dmd_denoising_steps": [999, 874, 749, 624, 500, 375, 250, 125],
        "num_inference_steps": 9,
        "transformer_forwards": 8,
        "video_scheduler_shift": 10.0,
        "audio_scheduler_shift": 3.0,
    }
    fast8 = (0.999, 0.874, 0.749, 0.624, 0.5, 0.375, 0.25, 0.125, 0.0)
    assert ladder("v2", beside={"fastvideo_inference.json": v2}) == (None, (8, fast8, 10.0, 3.0))
    manifest = {"sampling": {"base_timesteps": [999, 749, 500, 250]}}
    assert ladder("manifest", beside={"adapter_manifest.json": manifest}) == (None, (4, fast4, None, None))
    both = ("t2va", "fl2va")
    for name, want in {
        "minimax_h3_fl2v_turbo_4step_v0.1.safetensors": (both, (4, None, 12.0, 3.0)),
        "minimax_h3_fl2v_turbo_8step_v1.0_bf16.safetensors": (both, (8, None, 12.0, 3.0)),
        "minimax_h3_fl2v_turbo_8step_v1.0_768p_bf16.safetensors": (both, (8, None, 6.0, 3.0)),
        "minimax_h3_ref2v_turbo_8step_v1.0_768p_bf16.safetensors": (("ref2va",), (8, None, 12.0, 3.0)),
        "my_turbo_8step.safetensors": (None, None),
    }.items():
        assert ladder(name.removesuffix(".safetensors"), name=name, alpha="8") == want, name
    said = {"num_inference_steps": 9, "flow_shift": 6}
    assert ladder("sidecar", sidecar=said, base_schedule="1,0") == (None, (8, None, 6.0, None))


def test_alpha_is_said_by_the_strongest_word(tmp_path):
    def scale(folder, module="transformer_blocks.0.attn.to_q", **kwargs):
        (tmp_path / folder).mkdir()
        return contract(tmp_path / folder, **kwargs).scale(module, 4, None)

    turbo = "minimax_h3_fl2v_turbo_4step_v0.1.safetensors"
    assert scale("none") == 1
    assert scale("metadata", alpha="8") == 2
    assert scale("turbo", name=turbo) == 2  # 8, its publisher's default
    assert scale("turbo-states", name=turbo, alpha="16") == 4
    assert scale("config", alpha="8", beside={"adapter_config.json": {"lora_alpha": 2, "r": 4}}) == 0.5
    assert scale("rslora", beside={"adapter_config.json": {"lora_alpha": 2, "use_rslora": True}}) == 1
    pattern = {"adapter_config.json": {"lora_alpha": 2, "alpha_pattern": {"attn.to_q": 12}}}
    assert scale("pattern", beside=pattern) == 3
    assert scale("pattern-other", "proj_in", beside=pattern) == 0.5
    assert scale("sidecar", alpha="8", sidecar={"alpha": 128}) == 32
