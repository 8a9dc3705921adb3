"""Half a tensor is half of what a file holds, in every layout."""

from __future__ import annotations

import pytest
import torch

from talkies.h3.dit_keys import Layout
from talkies.model.cuts import Cut
from talkies.model.weights import DiTReader
from tests.model.test_weights import _save, _tensors
from tests.model.tiny import CONFIG

INNER, FFN, HEAD = CONFIG.inner_dim, CONFIG.ffn_dim, CONFIG.attention_head_dim
CUTS = {
    "blocks.1.attn.to_qkv.weight": Cut(0, tuple((k * INNER + HEAD, (k + 1) * INNER) for k in range(3))),
    "blocks.2.attn.to_qkv.weight": Cut(0, ((2 * INNER, 3 * INNER), (0, INNER))),
    "blocks.1.attn.to_out.weight": Cut(1, ((HEAD, 2 * HEAD),)),
    "blocks.0.ff.up.weight": Cut(0, ((FFN // 4, FFN // 2), (FFN + FFN // 4, FFN + FFN // 2))),
    "blocks.1.ff.up.weight": Cut(0, ((FFN, FFN + FFN // 2), (0, FFN // 2))),  # begins where the second half does
    "token_refiner.blocks.0.ff.down.weight": Cut(1, ((FFN // 4, FFN // 2),)),
}


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", CUTS)
def test_a_part_is_the_cut_of_the_whole_and_no_more_is_read(name, layout, tmp_path, monkeypatch):
    reader = DiTReader(
        _save(tmp_path, _tensors(layout)),
        dtype=torch.float32,
        layout=Layout.REPACKED if layout is Layout.REPACKED else None,
    )
    cut = CUTS[name]
    want = cut.of(reader.tensor(name))
    read, real = [], reader.files.part

    def part(*arguments):
        read.append(real(*arguments))
        return read[-1]

    monkeypatch.setattr(reader.files, "part", part)
    monkeypatch.setattr(reader.files, "tensor", lambda key: pytest.fail(f"all of {key} is read"))
    got = reader.part(name, cut)
    assert torch.equal(got, want)
    assert got.is_contiguous()
    assert got.dtype == torch.float32
    assert sum(tensor.numel() for tensor in read) == want.numel()


def test_a_cut_keeps_nothing_of_the_whole_alive():
    whole = torch.arange(24.0).view(4, 6)
    for cut in (Cut(0, ((1, 3),)), Cut(1, ((2, 4),)), Cut(0, ((0, 1), (3, 4)))):
        part = cut.of(whole)
        assert part.untyped_storage().nbytes() == part.numel() * 4
    assert cut.of(whole).tolist() == [whole[0].tolist(), whole[3].tolist()]


@pytest.mark.parametrize("spans", [((1, 3),), ((0, 1), (3, 4))], ids=["one", "two"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_cut_lies_row_by_row_however_the_whole_lies(axis, spans):
    """Kernels read weights row by row."""
    for whole in (torch.arange(24.0).view(4, 6), torch.arange(24.0).view(6, 4).T):
        part = Cut(axis, spans).of(whole)
        assert part.is_contiguous()
        assert torch.equal(part, torch.cat([whole.narrow(axis, a, b - a) for a, b in spans], axis))
