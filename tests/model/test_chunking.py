"""Cutting a block's work changes its memory and not one bit of its result."""

from __future__ import annotations

import pytest
import torch

from talkies.errors import ConfigError
from talkies.h3.timesteps import step_plan
from talkies.model.chunking import Chunking, chunks_of
from talkies.model.modulation import unfolded
from tests.model.tiny import tiny_dit, tiny_layout, tiny_rows


def _run(dit, layout, rows):
    x = dit.embed(*rows[:2], dit.refine_text(rows[2]), layout)
    modulation = unfolded(dit, step_plan(layout, torch.tensor(0.25), torch.tensor(0.5)))
    return dit.run_blocks(x, dit.view(layout), modulation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("chunking", [Chunking(mlp_rows=64), Chunking(mlp_rows=128), Chunking(head_groups=2)], ids=str)
@pytest.mark.parametrize("audio_latents", [9, 64, 129])
def test_chunked_equals_whole_bit_for_bit(chunking, audio_latents, dtype):
    layout = tiny_layout(audio_latents=audio_latents)
    rows = tiny_rows(layout)
    dit = tiny_dit(dtype=dtype)
    whole = _run(dit, layout, rows)
    dit.use_chunking(chunking)
    assert torch.equal(_run(dit, layout, rows), whole)


@pytest.mark.parametrize("num_rows", [1, 64, 65, 129, 1009, 58_758])
@pytest.mark.parametrize("at_most", [64, 100, 8192, None])
def test_chunks_cover_every_row_once_and_none_is_too_long_or_short(num_rows, at_most):
    chunks = list(chunks_of(num_rows, at_most))
    assert [a for a, _ in chunks[1:]] == [b for _, b in chunks[:-1]]
    assert (chunks[0][0], chunks[-1][1]) == (0, num_rows)
    sizes = [b - a for a, b in chunks]
    assert max(sizes) <= (at_most or num_rows)
    if len(sizes) > 1:
        assert min(sizes) >= 32


def test_groups_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(ConfigError, match=r"head_groups=3 does not divide 2 heads.*use 1, 2"):
        tiny_dit().use_chunking(Chunking(head_groups=3))
    with pytest.raises(ConfigError, match="mlp_rows=10"):
        Chunking(mlp_rows=10)


@pytest.mark.parametrize("at_most", [64, 100, 8192])
def test_as_many_rows_as_a_chunk_may_have_are_one_chunk(at_most):
    assert list(chunks_of(at_most, at_most)) == [(0, at_most)]
    assert len(list(chunks_of(at_most + 1, at_most))) == 2


def test_chunks_are_whole_tiles_but_the_last():
    assert list(chunks_of(1000, 512)) == [(0, 512), (512, 1000)]
    assert list(chunks_of(1000, 400)) == [(0, 384), (384, 768), (768, 1000)]
    assert list(chunks_of(130, 64)) == [(0, 43), (43, 86), (86, 130)]  # two rows would be left: equal parts instead
