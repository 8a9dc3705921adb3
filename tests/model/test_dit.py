from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from talkies.attention import registry
from talkies.h3.packing import Stream, concat_layouts
from talkies.h3.timesteps import step_plan
from talkies.kernels.select import REFERENCE
from talkies.model.block import Attention
from talkies.model.chunking import Chunking
from talkies.model.dit import PackedDiT
from talkies.model.modulation import build_table, unfolded
from talkies.sampling.schedule import build_dual
from tests.model.tiny import CONFIG, tiny_dit, tiny_layout, tiny_rows

T_VIDEO, T_AUDIO = torch.tensor(0.25), torch.tensor(0.5)


def _velocities(dit, layout, rows, t=(T_VIDEO, T_AUDIO)):
    return dit(*rows, layout, step_plan(layout, *t))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("multiple", [64, 7, 101])
def test_poisoned_padding_changes_nothing(poison, multiple):
    dit, layout = tiny_dit(), tiny_layout()
    rows = tiny_rows(layout)
    expected = _velocities(dit, layout, rows)
    padded = layout.padded(multiple)
    assert padded.total_rows % multiple == 0
    refined = dit.refine_text(rows[2])
    x = dit.embed(*rows[:2], refined, padded)
    x[padded.num_rows :] = poison
    modulation = unfolded(dit, step_plan(padded, T_VIDEO, T_AUDIO))
    out = dit.project(dit.run_blocks(x, dit.view(padded), modulation), padded, modulation)
    for got, want in zip(out, expected, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_embedded_padding_is_zero():
    dit, layout = tiny_dit(), tiny_layout().padded()
    rows = tiny_rows(layout)
    x = dit.embed(*rows[:2], dit.refine_text(rows[2]), layout)
    assert x.shape == (layout.total_rows, CONFIG.hidden_size)
    assert not x[layout.num_rows :].any()


def test_co_batched_requests_equal_their_solo_runs():
    dit = tiny_dit()
    layouts = [tiny_layout(11), tiny_layout(5, keyframe=False, audio_latents=4), tiny_layout(8)]
    rows = [tiny_rows(layout, seed) for seed, layout in enumerate(layouts)]
    t_video, t_audio = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.4, 0.7, 0.3])
    solo = [_velocities(dit, layout, r, t) for layout, r, *t in zip(layouts, rows, t_video, t_audio, strict=True)]
    together = concat_layouts(layouts)
    assert together.documents.num_documents == 3
    joined = [torch.cat(parts) for parts in zip(*rows, strict=True)]
    video, audio = _velocities(dit, together, joined, (t_video, t_audio))
    torch.testing.assert_close(video, torch.cat([v for v, _ in solo]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(audio, torch.cat([a for _, a in solo]), rtol=1e-5, atol=1e-6)


def test_a_request_never_sees_another_ones_rows():
    dit = tiny_dit()
    layouts = [tiny_layout(11), tiny_layout(5, keyframe=False)]
    together = concat_layouts(layouts).padded()
    rows = [tiny_rows(layout) for layout in layouts]
    before = _velocities(dit, together, [torch.cat(p) for p in zip(*rows, strict=True)], (T_VIDEO, T_AUDIO))
    rows[1] = tuple(torch.full_like(part, float("nan")) for part in rows[1])
    after = _velocities(dit, together, [torch.cat(p) for p in zip(*rows, strict=True)], (T_VIDEO, T_AUDIO))
    for a, b, count in zip(before, after, (layouts[0].num_video_rows, layouts[0].num_audio_rows), strict=True):
        assert torch.equal(a[:count], b[:count])
        assert b[count:].isnan().all()


def test_isolated_modalities_do_not_see_each_other():
    dit, layout = tiny_dit(), tiny_layout(isolate="modality")
    rows = tiny_rows(layout)
    video, audio = _velocities(dit, layout, rows)
    other = tiny_rows(layout, seed=9)
    video_kept, audio_moved = _velocities(dit, layout, (rows[0], other[1], other[2]))
    assert torch.equal(video, video_kept)
    assert not torch.allclose(audio, audio_moved)


def test_run_blocks_leaves_its_input_and_runs_in_ranges():
    dit, layout = tiny_dit(), tiny_layout()
    rows = tiny_rows(layout)
    x = dit.embed(*rows[:2], dit.refine_text(rows[2]), layout)
    kept = x.clone()
    view, modulation = dit.view(layout), unfolded(dit, step_plan(layout, T_VIDEO, T_AUDIO))
    whole = dit.run_blocks(x, view, modulation)
    assert torch.equal(x, kept)
    halves = dit.run_blocks(dit.run_blocks(x, view, modulation, 0, 2), view, modulation, 2)
    assert torch.equal(whole, halves)
    assert torch.equal(dit.run_blocks(x, view, modulation, 1, 1), x)


@pytest.mark.parametrize("shares", [2, 3, 5])
def test_shares_of_the_rows_give_the_same_blocks(shares):
    dit, layout = tiny_dit(), tiny_layout().padded(30)
    rows = tiny_rows(layout)
    x = dit.embed(*rows[:2], dit.refine_text(rows[2]), layout)
    view, modulation = dit.view(layout), unfolded(dit, step_plan(layout, T_VIDEO, T_AUDIO))
    rank = {}

    def exchange(q, k, v, documents):  # what a sequence-parallel attend does, seen from one rank at a time
        rank.setdefault("qkv", []).append((q, k, v))
        return torch.zeros_like(q)

    size = layout.total_rows // shares
    bounds = [i * size for i in range(shares)] + [layout.total_rows]
    cuts = list(itertools.pairwise(bounds))
    for start, stop in cuts:
        dit.blocks[0](x[start:stop], view.cut(start, stop), modulation.cut(start, stop).block(0), exchange)
    seen = []
    dit.blocks[0](
        x, view, modulation.block(0), lambda q, k, v, documents: seen.append((q, k, v)) or torch.zeros_like(q)
    )
    for part in range(3):
        torch.testing.assert_close(torch.cat([qkv[part] for qkv in rank["qkv"]]), seen[0][part], rtol=1e-5, atol=1e-6)


def test_a_dropped_adaln_runs_from_the_table_alone():
    dit, layout = tiny_dit(), tiny_layout()
    rows = tiny_rows(layout)
    schedule = build_dual(5)
    plans = [step_plan(layout, *t) for t in zip(schedule.t_video, schedule.t_audio, strict=True)]
    table = build_table(dit, plans)
    expected = dit(*rows, layout, plans[2])
    dit.drop_adaln()
    assert not any("adaln" in name or "norm_out.linear" in name for name, _ in dit.named_parameters())
    for got, want in zip(dit(*rows, layout, table.step(2)), expected, strict=True):
        assert torch.equal(got, want)
    with pytest.raises(AssertionError, match="dropped"):
        unfolded(dit, plans[0])


def test_streams_cover_every_row_once():
    layout = concat_layouts([tiny_layout(), tiny_layout(3, keyframe=False)])
    rows = torch.cat((layout.text_indices, layout.video_indices, layout.audio_indices))
    assert torch.equal(rows.sort().values, torch.arange(layout.num_rows))
    assert [s.source for s in layout.of_stream(Stream.VIDEO)] == [0, 6, 48]


def test_a_block_is_begun_by_the_one_before_it_only_where_both_are_whole():
    """Whoever begins it, the bits are the same; hooked blocks (streamed ones) and chunked rows begin by themselves."""
    dit, layout = tiny_dit(), tiny_layout()
    view, modulation = dit.view(layout), unfolded(dit, step_plan(layout, T_VIDEO, T_AUDIO))
    x = torch.randn(layout.total_rows, CONFIG.hidden_size)
    counted = _CountingOps(dit)
    joined = dit.run_blocks(x, view, modulation)
    assert counted.taken() == 1  # the first block's own
    one_by_one = x
    for i in range(3):
        one_by_one = dit.run_blocks(one_by_one, view, modulation, i, i + 1)
    assert counted.taken() == 3
    assert torch.equal(joined, one_by_one)
    handle = dit.blocks[1].register_forward_pre_hook(lambda module, args: None)
    assert torch.equal(dit.run_blocks(x, view, modulation), joined)
    assert counted.taken() == 2
    handle.remove()
    dit.use_chunking(Chunking(mlp_rows=64))
    assert layout.total_rows > 64
    assert torch.equal(dit.run_blocks(x, view, modulation), joined)
    assert counted.taken() == 3


class _CountingOps:
    """How often a block normed its own input."""

    def __init__(self, dit):
        self.count = 0
        ops = replace(dit.ops, rms_modulate=self._counted(dit.ops.rms_modulate))
        for block in dit.blocks:
            block.ops = ops

    def _counted(self, op):
        def counted(*args, **kwargs):
            self.count += 1
            return op(*args, **kwargs)

        return counted

    def taken(self):
        count, self.count = self.count, 0
        return count


def test_angles_turn_with_the_theta_of_the_config():
    layout = tiny_layout()
    dit = PackedDiT(replace(CONFIG, rope_theta=500.0), attend=registry.create("sdpa"))
    view = dit.view(layout)
    for axis in range(3):
        for j in range(CONFIG.rope_freq_dim):
            angles = layout.positions[:, axis] * 500.0 ** (-j / CONFIG.rope_freq_dim)
            column = axis * CONFIG.rope_freq_dim + j
            torch.testing.assert_close(view.cos_SA[:, column].double(), angles.cos(), rtol=0, atol=1e-5)
            torch.testing.assert_close(view.sin_SA[:, column].double(), angles.sin(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("head_groups", [1, 2])
def test_queries_and_keys_are_normed_with_their_own_epsilon(head_groups):
    """A large one, other than that of the block's norms, against the formula in float64."""
    config = replace(CONFIG, qk_norm_eps=0.25, norm_eps=1e-3, final_norm_eps=1e-2)
    torch.manual_seed(0)
    attention = Attention(config, REFERENCE).requires_grad_(False)
    attention.head_groups = head_groups
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.3)
    h_SD, seen = torch.randn(5, config.hidden_size), []

    def attend(q, k, v, documents):
        seen.append((q.clone(), k.clone(), v.clone()))  # groups share their memory
        return v.contiguous()

    attention(h_SD, None, None, None, attend)
    q, k, v = (torch.cat(parts, dim=1).double() for parts in zip(*seen, strict=True))
    projected = (h_SD.double() @ attention.to_qkv.weight.double().T).unflatten(1, (3, 2, -1))
    for got, part, weight in ((q, 0, attention.norm_q), (k, 1, attention.norm_k)):
        x = projected[:, part]
        want = x / (x.square().mean(-1, keepdim=True) + 0.25).sqrt() * weight.double()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(v, projected[:, 2], rtol=1e-5, atol=1e-5)
