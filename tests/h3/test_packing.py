from __future__ import annotations

import pytest
import torch

from talkies.errors import InvalidRequest
from talkies.h3.packing import (
    AudioCondition,
    VisualCondition,
    audio_to_rows,
    build_layout,
    concat_layouts,
    patchify_video,
    rows_to_audio,
    unpatchify_video,
)
from talkies.h3.timesteps import row_timesteps

RELEASED = {"patch_size": (1, 2, 2), "audio_latents": 348, "latent_frames": 62}


def _layout(num_text, width, height, **kwargs):
    sizes = {**RELEASED, "latent_height": height // 16, "latent_width": width // 16, **kwargs}
    return build_layout(text_tags=torch.ones(num_text, dtype=torch.long), **sizes)


@pytest.mark.parametrize(
    ("num_text", "size", "frames", "audio", "used", "aligned"),
    [
        (30, (1248, 768), 62, 348, 58_758, 58_816),
        (30, (1344, 768), 62, 348, 63_222, 63_232),
        (30, (1344, 768), 57, 320, 58_126, 58_176),
        (500, (1344, 768), 37, 207, 38_210, 38_272),
        (500, (1344, 768), 102, 575, 104_466, 104_512),
    ],
)
def test_worked_lengths(num_text, size, frames, audio, used, aligned):
    layout = _layout(num_text, *size, latent_frames=frames, audio_latents=audio)
    assert layout.num_rows == layout.total_rows == used
    assert layout.padded().total_rows == aligned
    assert layout.documents is None
    assert layout.padded().documents.cu_seqlens == (0, used)


def test_worked_length_with_two_keyframes():
    frame = {"latent_height": 48, "latent_width": 84}
    kinds = ("keyframe-first", "keyframe-last")
    layout = _layout(30, 1344, 768, conditions=[VisualCondition(kind=k, **frame) for k in kinds])
    assert (layout.num_rows, layout.padded().total_rows) == (65_238, 65_280)
    assert layout.num_condition_video_rows == 2_016
    last = layout.positions[30 + 1008 : 30 + 2016]
    assert last[:, 0].unique().tolist() == pytest.approx([376.6667], abs=1e-4)


def test_released_positions():
    layout = _layout(30, 1248, 768)
    assert layout.positions[-1].tolist() == pytest.approx([371.6667, 27.5055, 35.3501], abs=1e-4)
    assert layout.positions[layout.audio_indices[-1]].tolist() == pytest.approx([377, 0, 35.3501], abs=1e-4)
    wide = _layout(30, 1344, 768).positions[-1008:]
    assert [wide[0, 1], wide[-1, 1]] == pytest.approx([3.9051, 27.0870], abs=1e-4)
    assert [wide[0, 2], wide[-1, 2]] == pytest.approx([-5.1660, 36.1581], abs=1e-4)
    first_times = _layout(0 + 1, 64, 64).positions[-62 * 4 :: 4, 0] - 1
    assert first_times[:8].tolist() == pytest.approx([0, 1.667, 8.333, 15, 21.667, 28.333, 30, 36.667], abs=1e-3)


def test_audio_sits_at_the_two_ends_of_its_own_width_axis():
    layout = build_layout(
        text_tags=torch.ones(3),
        conditions=[
            VisualCondition(kind="video", latent_height=4, latent_width=12, latent_frames=2, audio_latents=5),
            AudioCondition(audio_latents=4),
        ],
        latent_frames=2,
        latent_height=8,
        latent_width=4,
        audio_latents=6,
        patch_size=(1, 2, 2),
    )
    w = layout.positions[layout.audio_indices, 2]
    video_w = layout.positions[layout.video_indices, 2]
    reference, target = video_w[: 2 * 12], video_w[2 * 12 :]
    assert w[:10].unique().tolist() == [reference.min(), reference.max()]
    assert w[10:].unique().tolist() == [target.min(), target.max()]
    # Soundtrack, alone, target: three origins on one clock.
    t = layout.positions[layout.audio_indices, 0]
    span = max(5.0, 5 / 3 * 5)
    assert [t[0], t[10], t[18]] == pytest.approx([3, 3 + span, 3 + span + 4])


def test_vision_blocks_inside_the_text_keep_their_tag():
    tags = torch.tensor([1, 0, 0, 0, 1, 1])
    layout = build_layout(
        text_tags=tags, latent_frames=2, latent_height=2, latent_width=2, audio_latents=1, patch_size=(1, 2, 2)
    )
    assert layout.tags.tolist() == [1, 0, 0, 0, 1, 1, 2, 2, 0, 0]
    assert layout.tags.dtype == torch.int8
    assert layout.padded(16).tags[10:].tolist() == [-1] * 6
    assert not layout.padded(16).positions[10:].any()


def test_isolated_modalities_are_documents_of_their_own():
    layout = build_layout(
        text_tags=torch.ones(10),
        latent_frames=5,
        latent_height=4,
        latent_width=4,
        audio_latents=15,
        num_audio_channels=1,
        patch_size=(1, 2, 2),
        isolate="modality",
    )
    assert layout.documents.cu_seqlens == (0, 10, 30, 45)
    assert layout.tags.tolist() == [1] * 10 + [0] * 20 + [2] * 15


def test_isolation_groups_the_rows_of_interleaved_references():
    video = VisualCondition(kind="video", latent_height=4, latent_width=4, latent_frames=2, audio_latents=3)
    sizes = {"latent_frames": 2, "latent_height": 4, "latent_width": 4, "audio_latents": 2, "patch_size": (1, 2, 2)}
    together = build_layout(text_tags=torch.ones(5), conditions=[video, video], **sizes)
    apart = build_layout(text_tags=torch.ones(5), conditions=[video, video], isolate="modality", **sizes)
    assert apart.documents.cu_seqlens == (0, 5, 5 + 24, 5 + 24 + 16)
    for name in ("text_indices", "video_indices", "audio_indices"):
        a, b = getattr(together, name), getattr(apart, name)
        assert torch.equal(together.positions[a], apart.positions[b])


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([VisualCondition(kind="keyframe-first", latent_height=4, latent_width=8)], "target frame 1x4x6"),
        (
            [
                VisualCondition(kind="keyframe-first", latent_height=4, latent_width=6),
                VisualCondition(kind="image", latent_height=4, latent_width=6),
            ],
            "keyframes and references",
        ),
    ],
)
def test_impossible_conditions_are_refused(conditions, message):
    with pytest.raises(InvalidRequest, match=message):
        build_layout(
            text_tags=torch.ones(3),
            conditions=conditions,
            latent_frames=2,
            latent_height=4,
            latent_width=6,
            audio_latents=2,
            patch_size=(1, 2, 2),
        )


def test_condition_rows_have_their_own_timesteps():
    layout = build_layout(
        text_tags=torch.ones(3),
        conditions=[
            VisualCondition(kind="image", latent_height=2, latent_width=2),
            AudioCondition(audio_latents=2),
        ],
        latent_frames=2,
        latent_height=2,
        latent_width=2,
        audio_latents=1,
        patch_size=(1, 2, 2),
    ).padded(16)
    distinct, index = row_timesteps(layout, torch.tensor(0.25), torch.tensor(0.5))
    assert distinct.tolist() == torch.tensor([0.25, 0.5, 0.999, 1.0]).tolist()
    assert index.tolist() == [0] * 3 + [2] + [3] * 4 + [1] * 2 + [0] * 2 + [0] * 4
    late, _ = row_timesteps(layout, torch.tensor(0.9995), torch.tensor(0.5))
    assert late.tolist() == torch.tensor([0.5, 0.9995, 1.0]).tolist()


def test_a_batch_of_one_is_the_layout_itself():
    layout = _layout(7, 96, 64)
    again = concat_layouts([layout])
    assert again.segments == layout.segments
    assert torch.equal(again.tags, layout.tags)
    assert torch.equal(again.positions, layout.positions)
    assert again.documents is None


def test_concatenation_is_associative():
    a, b, c = _layout(3, 64, 64), _layout(5, 96, 64), _layout(7, 64, 96)
    left, right = concat_layouts([concat_layouts([a, b]), c]), concat_layouts([a, b, c])
    assert left.segments == right.segments
    assert left.documents == right.documents
    assert left.num_requests == 3


@pytest.mark.parametrize("shape", [(1, 24, 5, 6, 10), (1, 4, 1, 2, 2), (1, 3, 7, 4, 14)])
def test_video_rows_invert_exactly(shape):
    latents = torch.randn(shape)
    rows = patchify_video(latents, (1, 2, 2))
    assert rows.shape == (shape[2] * shape[3] // 2 * shape[4] // 2, shape[1] * 4)
    assert rows[0].tolist() == latents[0, :, 0, :2, :2].reshape(-1).tolist()
    assert torch.equal(unpatchify_video(rows, *shape[2:], (1, 2, 2)), latents)


@pytest.mark.parametrize("num_latents", [1, 7, 207])
def test_audio_rows_invert_exactly(num_latents):
    latents = torch.randn(2, 5, num_latents)
    rows = audio_to_rows(latents)
    assert torch.equal(rows[:num_latents], latents[0].T)
    assert torch.equal(rows_to_audio(rows), latents)
