from __future__ import annotations

import json

import pytest

from talkies.codecs.text.tokens import FolderTokenizer
from talkies.errors import CheckpointError

SPECIAL = {"content": "<|cutoff|>", "special": True, "normalized": False}


@pytest.fixture
def folder(tiny_parts, tmp_path):
    tiny_parts["tokenizer"].save_pretrained(tmp_path)
    return tmp_path


def test_ids_are_those_of_the_transformers_tokenizer(tiny_parts, folder):
    ours, theirs = FolderTokenizer.load(folder), tiny_parts["tokenizer"]
    for text in ("a robot dances", " <d>[English] hi</d>\n", "naïve 漢字 🎺", "<|image_pad|>x"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.token_id("<d>") == theirs.convert_tokens_to_ids("<d>")


def test_tokens_that_only_the_config_declares_are_added_at_their_ids(tiny_parts, folder):
    size = len(tiny_parts["tokenizer"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {str(size): SPECIAL}}))
    assert FolderTokenizer.load(folder).encode("a<|cutoff|>")[-1] == size


def test_a_declared_id_that_cannot_be_kept_is_refused(tiny_parts, folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"99999": SPECIAL}}))
    with pytest.raises(CheckpointError, match="not 99999"):
        FolderTokenizer.load(folder)


def test_a_folder_without_tokenizer_json_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        FolderTokenizer.load(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot read"):
        FolderTokenizer.load(tmp_path)


def test_a_tokenizer_without_vision_tokens_is_refused(folder):
    text = (folder / "tokenizer.json").read_text().replace("<|video_pad|>", "<|other|>")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"<\|video_pad\|>"):
        FolderTokenizer.load(folder)
