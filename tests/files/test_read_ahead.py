"""Bytes that come from the disk before they are asked for: the same tensors, named errors, two groups at most."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file

from talkies.errors import CheckpointError
from talkies.files import read_ahead
from talkies.files.read_ahead import ReadAhead, grouped
from talkies.files.tensor_files import TensorFiles
from talkies.model.weights import DiTReader, build_dit

# Two chunks and an odd rest, a single byte, nothing, and one in another file.
TENSORS = {
    "a": torch.arange(2 * read_ahead.CHUNK_BYTES + 77).to(torch.uint8),
    "b": torch.ones(1, dtype=torch.uint8),
    "c": torch.ones(0, 5),
}


@pytest.fixture
def folder(tmp_path):
    save_file(TENSORS, tmp_path / "m-0.safetensors")
    save_file({"d": torch.full((1001,), 3.0)}, tmp_path / "m-1.safetensors")
    names = dict.fromkeys(TENSORS, "m-0.safetensors") | {"d": "m-1.safetensors"}
    (tmp_path / "m.safetensors.index.json").write_text(f'{{"weight_map": {names}}}'.replace("'", '"'))
    return tmp_path


@pytest.fixture
def cold(monkeypatch):
    """As if nothing were in the page cache."""
    monkeypatch.setattr(read_ahead, "_is_cached", lambda fd, start: False)


def test_every_byte_is_read_once(folder, cold, monkeypatch):
    files, ahead, seen = TensorFiles(folder), ReadAhead(), []
    real = os.preadv

    def preadv(fd, buffers, position):
        count = real(fd, buffers, position)
        seen.append((os.readlink(f"/proc/self/fd/{fd}"), position, position + count))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    spans = files.spans(["a", "b", "c", "d"])
    ahead.begin(spans[:3], spans[3:])
    ahead.begin(spans[3:])
    assert ahead.bytes_read == sum(s.stop - s.start for s in spans) == TENSORS["a"].nbytes + 1 + 4 * 1001
    for span in spans:
        parts = sorted((a, b) for file, a, b in seen if file == str(span.file) and span.start <= a < span.stop)
        assert sum(b - a for a, b in parts) == span.stop - span.start
        if parts:
            assert (parts[0][0], parts[-1][1]) == (span.start, span.stop)
    assert torch.equal(files.tensor("a"), TENSORS["a"])


def test_the_next_group_comes_while_the_reader_has_this_one(folder, cold, monkeypatch):
    spans = TensorFiles(folder).spans(["a", "b", "d"])
    begun, waited = [], []
    real = read_ahead._Group

    class Group(real):
        def __init__(self, spans):
            begun.append(spans[0].key)
            super().__init__(spans)

        def wait(self):
            waited.append(self.spans[0].key)
            return super().wait()

    monkeypatch.setattr(read_ahead, "_Group", Group)
    ahead = ReadAhead()
    ahead.begin(spans[:1], spans[1:2])
    assert (begun, waited) == (["a", "b"], ["a"])
    ahead.begin(spans[1:2], spans[2:])
    assert (begun, waited) == (["a", "b", "d"], ["a", "b"])
    ahead.begin(spans[:1])  # out of order: what was coming is given up
    assert (begun, waited) == (["a", "b", "d", "a"], ["a", "b", "a"])


def test_what_is_in_the_page_cache_is_not_read_again(folder):
    files, ahead = TensorFiles(folder), ReadAhead()
    probe = os.open(files.file_of("a"), os.O_RDONLY)
    cached = read_ahead._is_cached(probe, files.keys["a"].start)
    os.close(probe)
    if not cached:
        pytest.skip("this file system does not say what it has in memory")
    ahead.begin(files.spans(["a"]))
    assert ahead.bytes_read == 0


def test_an_error_of_the_disk_names_the_tensor(folder, cold, monkeypatch):
    files = TensorFiles(folder)
    broken = files.keys["a"].start + read_ahead.CHUNK_BYTES
    real = os.preadv

    def preadv(fd, buffers, position):
        if position == broken:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CheckpointError, match=r"m-0\.safetensors: 'a' cannot be read: .*Input/output error"):
        ReadAhead().begin(files.spans(["b", "a"]))


def test_a_file_that_became_shorter_is_named(folder, cold):
    files = TensorFiles(folder)
    os.truncate(files.file_of("d"), files.keys["d"].stop - 9)
    with pytest.raises(CheckpointError, match="'d' cannot be read: the file ends before it"):
        ReadAhead().begin(files.spans(["d"]))


def test_a_checkpoint_that_was_deleted_is_still_mapped(folder):
    files, keys = TensorFiles(folder), ["a", "d"]
    assert torch.equal(files.tensor("a"), TENSORS["a"])
    for path in folder.iterdir():
        path.unlink()
    ReadAhead().begin(files.spans(keys))
    assert torch.equal(files.tensor("a"), TENSORS["a"])
    with pytest.raises(CheckpointError, match=r"m-1\.safetensors: 'd' cannot be read"):  # never asked for before
        files.tensor("d")


def test_groups_keep_the_order_and_the_size():
    sizes = [("a", 3), ("b", 3), ("c", 9), ("d", 1), ("e", 4)]
    assert grouped(sizes, 6) == [["a", "b"], ["c"], ["d", "e"]]
    assert grouped([], 6) == []


def test_a_dit_is_read_block_by_block_without_adaln(tiny_folder, monkeypatch):
    begun = []
    real = ReadAhead.begin

    def begin(self, now, then=()):
        begun.append((sorted({s.key for s in now}), sorted({s.key for s in then})))
        real(self, now, then)

    monkeypatch.setattr(ReadAhead, "begin", begin)
    reader = DiTReader(tiny_folder / "transformer")
    build_dit(reader, attend=lambda *a: a[0], adaln=False)
    assert len(begun) == 1 + reader.config.num_layers
    for (_, then), (now, _) in pairwise(begun):
        assert then == now
    assert begun[-1][1] == []
    loaded = {key for now, _ in begun for key in now}
    adaln = {key for key in reader.files.keys if "adaln" in key or key.startswith("norm_out.linear")}
    assert adaln
    assert loaded == set(reader.files.keys) - adaln
    before = reader.files.bytes_asked
    begun.clear()
    for index in range(reader.config.num_layers):
        reader.block_adaln(index)
    assert begun[0][1] == begun[1][0]
    assert {key for now, _ in begun for key in now} <= adaln
    weight = reader.config.time_embed_dim * reader.config.adaln_out_features
    assert reader.files.bytes_asked - before == reader.config.num_layers * 4 * (
        weight + reader.config.adaln_out_features
    )


@pytest.mark.parametrize("align", [True, False])
def test_alignment_is_a_choice_of_who_computes_on_a_cpu(folder, align):
    files = TensorFiles(folder, align=align)
    tensors = [files.tensor(key) for key in ("a", "b", "d")]
    if align:
        assert not any(t.data_ptr() % 64 for t in tensors)
    else:
        assert any(t.data_ptr() % 64 for t in tensors)
    assert torch.equal(tensors[0], TENSORS["a"])
    assert files.bytes_asked == sum(t.nbytes for t in tensors)


def test_a_process_may_end_while_a_disk_is_slow(folder, cold, monkeypatch):
    """Python waits at its end for threads that are not daemons, and a stuck disk would keep a failed start alive."""
    daemons, real = [], os.preadv

    def preadv(fd, buffers, position):
        daemons.append(threading.current_thread().daemon)
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    ReadAhead().begin(TensorFiles(folder).spans(["a", "d"]))
    assert daemons
    assert all(daemons)
