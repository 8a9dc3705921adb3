"""Tensors of files that lie as their writer left them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from talkies.files.tensor_files import TensorFiles


@pytest.fixture
def path(tmp_path):
    """Of its tensors only the first can lie at a multiple of 64: the others come 3 and 8 bytes behind it."""
    tensors = {"a": torch.arange(3), "b": torch.arange(5), "c": torch.arange(70)}
    save_file({key: tensor.to(torch.uint8) for key, tensor in tensors.items()}, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def test_memory_is_aligned_unless_it_is_only_passed_on(path):
    """The last bits of a product depend on it, so that a clip's bytes would depend on who wrote the file."""
    files, raw = TensorFiles(path), TensorFiles(path, align=False)
    assert [files.tensor(key).data_ptr() % 64 for key in "abc"] == [0, 0, 0]
    assert any(raw.tensor(key).data_ptr() % 64 for key in "abc")
    assert all(torch.equal(files.tensor(key), raw.tensor(key)) for key in "abc")


def test_bytes_are_counted_where_they_are_handed_out(path):
    files = TensorFiles(path)
    files.peek("c")
    assert files.bytes_asked == 0
    files.tensor("c")
    files.tensor("a")
    assert files.bytes_asked == 73
