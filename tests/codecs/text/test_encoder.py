from __future__ import annotations

import shutil

import pytest
import torch

from talkies.codecs.text.encoder import TextEncoder
from talkies.codecs.text.presentation import EncoderImage, PixelRows, Presentation, present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.errors import CheckpointError, InvalidRequest, NumericsError
from talkies.files.component_folders import WeightFolder
from talkies.files.json_files import read_json
from tests.codecs import tiny


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return TextEncoder.load(tiny_folder / "text_encoder")


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return FolderTokenizer.load(tiny_folder / "tokenizer")


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder / "text_encoder", tmp_path / "text_encoder")


def tensors_of(folder):
    weights = WeightFolder(folder)
    return {key: weights.read(key).clone() for key in weights.keys}


def test_only_fifty_layers_are_built_and_no_norm_and_no_head(encoder):
    stack = encoder.model.language_model
    assert len(stack.layers) == 50
    assert not list(stack.norm.parameters())
    assert not any("lm_head" in name for name, _ in encoder.model.named_parameters())


def test_sharded_weights_load_alike(folder, encoder, tokenizer):
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = {}
    for i, keys in enumerate([sorted(tensors)[::2], sorted(tensors)[1::2]]):
        tiny.save_tensors({key: tensors[key] for key in keys}, folder / f"model-{i}.safetensors")
        names |= dict.fromkeys(keys, f"model-{i}.safetensors")
    tiny.write_json(folder / "model.safetensors.index.json", {"weight_map": names})
    shown = present(tokenizer, "a robot")
    assert torch.equal(TextEncoder.load(folder).encode(shown).states, encoder.encode(shown).states)


def test_weights_past_layer_fifty_are_not_needed(folder, encoder, tokenizer):
    tensors = tensors_of(folder)
    kept = {
        key: tensor
        for key, tensor in tensors.items()
        if ".layers.50." not in key and key not in ("lm_head.weight", "model.language_model.norm.weight")
    }
    assert len(kept) < len(tensors)
    tiny.save_tensors(kept, folder / "model.safetensors")
    shown = present(tokenizer, "a robot")
    assert torch.equal(TextEncoder.load(folder).encode(shown).states, encoder.encode(shown).states)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.language_model.layers.49.mlp.up_proj.weight"), r"missing .*layers\.49\.mlp\.up_proj"),
        (lambda t: t.pop("model.visual.pos_embed.weight"), r"missing .*visual\.pos_embed"),
        (lambda t: t.update({"model.language_model.extra": torch.zeros(1)}), r"unknown .*language_model\.extra"),
        (lambda t: t.update({"model.language_model.layers.51.x": torch.zeros(1)}), r"unknown .*layers\.51\.x"),
        (
            lambda t: t.update({"model.language_model.embed_tokens.weight": torch.zeros(3, 4)}),
            "embed_tokens.* has shape",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, message):
    tensors = tensors_of(folder)
    change(tensors)
    tiny.save_tensors(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        TextEncoder.load(folder)


@pytest.mark.parametrize("num_layers", [2, 49])
def test_a_shorter_stack_is_refused(folder, num_layers):
    config = read_json(folder / "config.json")
    config["text_config"]["num_hidden_layers"] = num_layers
    tiny.write_json(folder / "config.json", config)
    with pytest.raises(CheckpointError, match=f"has {num_layers} layers"):
        TextEncoder.load(folder)


def test_a_config_of_another_model_is_refused(folder):
    tiny.write_json(folder / "config.json", {"model_type": "qwen3"})
    with pytest.raises(CheckpointError, match="not a Qwen3-VL config"):
        TextEncoder.load(folder)


def test_states_that_are_not_finite_are_named(folder, tokenizer):
    tensors = tensors_of(folder)
    tensors["model.language_model.embed_tokens.weight"][:] = float("nan")
    tiny.save_tensors(tensors, folder / "model.safetensors")
    with pytest.raises(NumericsError, match="text encode"):
        TextEncoder.load(folder).encode(present(tokenizer, "a"))


def test_an_id_outside_the_vocabulary_is_refused(encoder):
    shown = Presentation(
        input_ids=(5, 99_999), token_tags=(1, 1), mm_token_type_ids=(0, 0), image_grids=(), video_grids=()
    )
    with pytest.raises(InvalidRequest, match="99999"):
        encoder.encode(shown)


def test_pads_without_their_pixels_are_refused(encoder, tokenizer):
    shown = present(tokenizer, "a", [EncoderImage(tiny.pictures(0, 256, 256, 3))])
    with pytest.raises(ValueError, match="256 patch rows"):
        encoder.encode(shown, PixelRows())


@pytest.mark.parametrize("live", [0, 5])
def test_layers_that_add_nothing_are_left_out_and_change_nothing(folder, tokenizer, monkeypatch, live):
    """But for those at whose ends pictures are added (deepstack), which are there even if they are empty."""
    tensors = tensors_of(folder)
    for i in range(live, 50):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.language_model.layers.{i}.{name}.weight"].zero_()
    tiny.save_tensors(tensors, folder / "model.safetensors")
    taps = len(read_json(folder / "config.json")["vision_config"]["deepstack_visual_indexes"])
    short = TextEncoder.load(folder)
    assert len(short.model.language_model.layers) == max(live, taps)
    monkeypatch.setattr("talkies.codecs.text.source.TextSource.is_identity", lambda *_: False)
    whole = TextEncoder.load(folder)
    assert len(whole.model.language_model.layers) == 50
    shown = present(tokenizer, "a robot")
    assert torch.equal(short.encode(shown).states, whole.encode(shown).states)


def test_a_checkpoint_that_stores_no_layer_past_the_condition_loads(folder, tokenizer, encoder):
    config = read_json(folder / "config.json")
    kept = {k: t for k, t in tensors_of(folder).items() if ".layers.50." not in k}
    config["text_config"]["num_hidden_layers"] = 50
    config["text_config"].pop("layer_types", None)
    tiny.write_json(folder / "config.json", config)
    tiny.save_tensors(kept, folder / "model.safetensors")
    shown = present(tokenizer, "a robot")
    assert torch.equal(TextEncoder.load(folder).encode(shown).states, encoder.encode(shown).states)
    config["text_config"]["num_hidden_layers"] = 49
    tiny.write_json(folder / "config.json", config)
    with pytest.raises(CheckpointError, match="has 49 layers"):
        TextEncoder.load(folder)
