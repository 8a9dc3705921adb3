"""Our forward against diffusers' MiniMaxH3Transformer3DModel, same weights, same rows."""

from __future__ import annotations

import pytest
import torch

from talkies.h3.packing import AudioCondition, VisualCondition, build_layout
from talkies.h3.rope import rotary_table
from talkies.h3.timesteps import row_timesteps, step_plan
from talkies.model.modulation import build_table
from tests.parity.h3 import oracle_dit, our_dit

KEYFRAME = {"latent_height": 4, "latent_width": 6}
CASES = {
    "t2va": ((1,) * 29, []),
    "fl2va": (
        (1,) * 12 + (0,) * 8 + (1,) * 12 + (0,) * 8 + (1,) * 7,
        [VisualCondition(kind="keyframe-first", **KEYFRAME), VisualCondition(kind="keyframe-last", **KEYFRAME)],
    ),
    "ref2va": (
        (1,) * 5 + (0,) * 6 + (1,) * 9 + (0,) * 5 + (1,) * 11,
        [
            VisualCondition(kind="image", latent_height=6, latent_width=4),
            VisualCondition(kind="video", latent_height=4, latent_width=4, latent_frames=7, audio_latents=9),
            AudioCondition(audio_latents=5),
        ],
    ),
}


def _layout(task):
    tags, conditions = CASES[task]
    return build_layout(
        text_tags=torch.tensor(tags),
        conditions=conditions,
        latent_frames=7,
        latent_height=4,
        latent_width=6,
        audio_latents=37,
        patch_size=(1, 2, 2),
    )


def _rows(layout, dtype):
    g = torch.Generator().manual_seed(5)
    return (
        torch.randn(layout.num_video_rows, 16, generator=g),
        torch.randn(layout.num_audio_rows, 8, generator=g),
        torch.randn(layout.num_text, 32, generator=g).to(dtype),
    )


def _oracle_forward(oracle, layout, video, audio, text, t_video, t_audio):
    timestep, indices = row_timesteps(layout, t_video, t_audio)
    out = oracle(
        hidden_states=video[None],
        audio_hidden_states=audio[None],
        encoder_hidden_states=text[None],
        timestep=timestep,
        timestep_indices=indices,
        token_tags=layout.tags.long(),
        position_ids=layout.positions,
        video_indices=layout.video_indices,
        audio_indices=layout.audio_indices,
        text_indices=layout.text_indices,
    )
    return out.sample[0], out.audio_sample[0]


def _relative(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("task", CASES)
@pytest.mark.parametrize("folded", [False, True])
def test_float32_forward_agrees_with_diffusers(task, folded, tmp_path):
    oracle = oracle_dit()
    dit = our_dit(oracle, tmp_path)
    layout = _layout(task)
    rows = _rows(layout, torch.float32)
    t_video, t_audio = torch.tensor(0.04), torch.tensor(1 / 7)
    theirs = _oracle_forward(oracle, layout, *rows, t_video, t_audio)
    plan = step_plan(layout, t_video, t_audio)
    ours = dit(*rows, layout, build_table(dit, [plan]).step(0) if folded else plan)
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == torch.float32
        assert our.shape == their.shape
        assert _relative(our, their) < 1e-5


@pytest.mark.parametrize("task", CASES)
def test_bfloat16_forward_rounds_where_diffusers_rounds(task, tmp_path):
    oracle = oracle_dit(dtype=torch.bfloat16)
    dit = our_dit(oracle, tmp_path, dtype=torch.bfloat16)
    layout = _layout(task)
    rows = _rows(layout, torch.bfloat16)
    t_video, t_audio = torch.tensor(0.04), torch.tensor(1 / 7)
    theirs = _oracle_forward(oracle, layout, *rows, t_video, t_audio)
    ours = dit(*rows, layout, step_plan(layout, t_video, t_audio))
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == torch.float32
        assert _relative(our, their) < 1e-3


@pytest.mark.parametrize("num_freqs", [4, 16])
@pytest.mark.parametrize("theta", [10000.0, 500.0])
def test_rotary_tables_are_the_same_bits_at_small_and_large_positions(num_freqs, theta):
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3RotaryPosEmbed

    g = torch.Generator().manual_seed(0)
    times = torch.cat([torch.arange(64.0), torch.rand(500, generator=g) * 1e5]).double()  # thirds of units, too
    positions = torch.stack([times, times.flip(0) - 37 / 3, times / 7], dim=1)
    cos, sin = MiniMaxH3RotaryPosEmbed(num_freqs, theta)(positions)
    ours = rotary_table(positions, num_freqs, theta, torch.float32)
    for our, their in zip(ours, (cos, sin), strict=True):
        assert our.shape == (len(times), 3 * num_freqs)
        assert torch.equal(torch.cat([our, our], dim=1), their)


# Each far from its default, and no two of one kind alike: one that is taken for another shows.
OTHER_CONFIG = {"norm_eps": 1e-1, "qk_norm_eps": 1e-2, "final_norm_eps": 0.5, "rope_theta": 500.0}


def test_epsilons_and_theta_are_those_of_the_config(tmp_path):
    oracle = oracle_dit(**OTHER_CONFIG)
    dit = our_dit(oracle, tmp_path)
    layout = _layout("t2va")
    rows = _rows(layout, torch.float32)
    t_video, t_audio = torch.tensor(0.04), torch.tensor(1 / 7)
    theirs = _oracle_forward(oracle, layout, *rows, t_video, t_audio)
    ours = dit(*rows, layout, step_plan(layout, t_video, t_audio))
    for our, their in zip(ours, theirs, strict=True):
        assert _relative(our, their) < 1e-5
    for name, value in OTHER_CONFIG.items():  # each of them counts
        (tmp_path / name).mkdir()
        default = our_dit(oracle_dit(**{k: v for k, v in OTHER_CONFIG.items() if k != name}), tmp_path / name)
        others = default(*rows, layout, step_plan(layout, t_video, t_audio))
        apart = [_relative(a, b) for a, b in zip(others, theirs, strict=True)]
        assert max(apart) > 1e-4, (name, value)
