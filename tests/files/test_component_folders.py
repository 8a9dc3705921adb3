from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from talkies.errors import CheckpointError
from talkies.files.component_folders import WeightFolder, fill
from talkies.files.json_files import read_json
from talkies.files.tensor_files import TensorFiles
from tests.codecs.tiny import save_tensors, write_json


def test_sharded_weights_read_like_a_single_file(tmp_path):
    a, b = torch.randn(3, 2), torch.randn(5)
    save_tensors({"a": a}, tmp_path / "model-1.safetensors")
    save_tensors({"b": b}, tmp_path / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    write_json(tmp_path / "model.safetensors.index.json", index)
    weights = WeightFolder(tmp_path)
    assert weights.keys == {"a", "b"}
    assert torch.equal(weights.read("b"), b)
    assert weights.shape("a") == (3, 2)


def test_an_absent_shard_is_named(tmp_path):
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "model-7.safetensors"}})
    with pytest.raises(CheckpointError, match=r"model-7\.safetensors"):
        WeightFolder(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        WeightFolder(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0 not a header")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        WeightFolder(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"weight": torch.zeros(3, 2)}, "missing weights bias"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(3), "extra": torch.zeros(1)}, "unknown weights extra"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}, r"weight has shape \[2, 3\]"),
    ],
)
def test_a_key_that_does_not_fit_is_named(tensors, word):
    with torch.device("meta"):
        module = nn.Linear(2, 3)
    with pytest.raises(CheckpointError, match=word):
        fill(module, tensors, "here")


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_config_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_an_absent_config_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        read_json(tmp_path / "config.json")


def test_json_is_read_as_utf8(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"k": "für"}, ensure_ascii=False), encoding="utf-8")
    assert read_json(tmp_path / "c.json") == {"k": "für"}


def test_a_tensor_that_two_files_have_is_refused_with_both(tmp_path):
    """Which of the two is meant nobody can say."""
    save_tensors({"a": torch.zeros(2), "b": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    save_tensors({"a": torch.ones(2)}, tmp_path / "model-2.safetensors")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    write_json(tmp_path / "model.safetensors.index.json", index)
    with pytest.raises(CheckpointError, match=r"'a' is in both .*model-1\.safetensors and .*model-2\.safetensors"):
        TensorFiles(tmp_path)
