"""Row order, tags, positions, indices and timestep plans: equal to diffusers' to the last bit."""

from __future__ import annotations

import pytest
import torch

from talkies.h3.packing import AudioCondition, VisualCondition, build_layout, patchify_video
from talkies.h3.timesteps import row_timesteps
from talkies.sampling.schedule import build_dual

PATCH = (1, 2, 2)
SIZES = [(7, 4, 4, 37), (37, 4, 6, 207), (17, 8, 14, 93), (62, 6, 10, 348), (107, 2, 2, 603)]


def _h3():
    from diffusers.modular_pipelines.minimax_h3 import before_denoise

    return before_denoise


def _tags(*runs):
    return torch.cat([torch.full((count,), tag, dtype=torch.long) for count, tag in runs])


def _assert_equal(layout, oracle):
    positions, tags, video, audio, text, nv, na = oracle
    assert torch.equal(layout.positions, positions)
    assert layout.positions.dtype == torch.float64
    assert torch.equal(layout.tags.long(), tags)
    assert torch.equal(layout.video_indices, video)
    assert torch.equal(layout.audio_indices, audio)
    assert torch.equal(layout.text_indices, text)
    assert (layout.num_condition_video_rows, layout.num_condition_audio_rows) == (nv, na)
    schedule = build_dual(20)
    for t_video, t_audio in zip(schedule.t_video, schedule.t_audio, strict=True):
        theirs = _h3().MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video, audio, nv, na, text.numel(), float(t_video), float(t_audio), max(float(t_video), 0.999), 1.0
        )
        ours = row_timesteps(layout, t_video, t_audio)
        for our, their in zip(ours, theirs, strict=True):
            assert our.dtype == their.dtype
            assert torch.equal(our, their)


@pytest.mark.parametrize("anchors", [(), ("first",), ("last",), ("first", "last")])
@pytest.mark.parametrize("size", SIZES)
def test_text_and_keyframe_layouts_equal_diffusers(size, anchors):
    frames, height, width, audio_latents = size
    tags = _tags((5, 1), *[(6, 0), (3, 1)] * len(anchors), (20, 1))
    layout = build_layout(
        text_tags=tags,
        conditions=[VisualCondition(kind=f"keyframe-{a}", latent_height=height, latent_width=width) for a in anchors],
        latent_frames=frames,
        latent_height=height,
        latent_width=width,
        audio_latents=audio_latents,
        patch_size=PATCH,
    )
    oracle = _h3().MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags, frames, height, width, audio_latents, PATCH, 2, 2, 0, anchors
    )
    _assert_equal(layout, oracle)


class _Reference:
    """The only two fields of a diffusers reference that the layout reads."""

    def __init__(self, kind, has_audio=False):
        self.kind, self.has_audio = kind, has_audio


MIXES = {
    "image": [("image", 1, 6, 4, 0)],
    "video with sound": [("video", 22, 4, 4, 9)],
    "silent video": [("video", 17, 8, 6, 0)],
    "sound longer than its picture": [("video", 2, 4, 4, 99)],
    "everything": [
        ("image", 1, 6, 4, 0),
        ("video", 37, 4, 4, 200),
        ("audio", 0, 0, 0, 41),
        ("video", 22, 4, 6, 0),
        ("audio", 0, 0, 0, 7),
        ("image", 1, 4, 10, 0),
    ],
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("size", SIZES)
def test_reference_layouts_equal_diffusers(size, mix):
    frames, height, width, audio_latents = size
    tags = _tags((5, 1), (6, 0), (3, 1), (5, 0), (11, 1))
    references, visual, sounds, conditions = [], [], [], []
    for kind, t, h, w, a in MIXES[mix]:
        references.append(_Reference(kind, has_audio=a > 0))
        if kind != "audio":
            visual.append(torch.empty(1, 4, t, h, w))
        if a:
            sounds.append(torch.empty(2 * a, 8))
        conditions.append(
            AudioCondition(audio_latents=a)
            if kind == "audio"
            else VisualCondition(kind=kind, latent_frames=t, latent_height=h, latent_width=w, audio_latents=a)
        )
    layout = build_layout(
        text_tags=tags,
        conditions=conditions,
        latent_frames=frames,
        latent_height=height,
        latent_width=width,
        audio_latents=audio_latents,
        patch_size=PATCH,
    )
    oracle = _h3().MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        tags, references, visual, sounds, frames, height, width, audio_latents, PATCH, 2, 2, 0
    )
    _assert_equal(layout, oracle)


@pytest.mark.parametrize("shape", [(1, 24, 5, 6, 10), (1, 4, 1, 2, 2), (1, 3, 7, 4, 14)])
def test_video_rows_equal_diffusers(shape):
    latents = torch.randn(shape)
    assert torch.equal(patchify_video(latents, PATCH), _h3().patchify_video_latents(latents, PATCH))
