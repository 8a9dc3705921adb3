from __future__ import annotations

import pytest
import torch

from talkies.h3.packing import Stream, build_layout, concat_layouts
from tests.model.tiny import tiny_layout


def _isolated():
    return build_layout(
        text_tags=torch.ones(3, dtype=torch.long),
        latent_frames=2,
        latent_height=4,
        latent_width=4,
        audio_latents=5,
        patch_size=(1, 2, 2),
        isolate="modality",
    )


LAYOUTS = {
    "words": tiny_layout(keyframe=False),
    "keyframe": tiny_layout(),
    "padded": tiny_layout().padded(),
    "isolated": _isolated(),
    "shared": concat_layouts([tiny_layout(), tiny_layout(5, keyframe=False), tiny_layout()]),
    "shared-padded": concat_layouts([tiny_layout(), tiny_layout(5, keyframe=False)]).padded(),
}


def _numbered(layout):
    """Each row holds its place in the sequence, so that whoever moves it can be checked."""
    indices = {
        Stream.TEXT: layout.text_indices,
        Stream.VIDEO: layout.video_indices,
        Stream.AUDIO: layout.audio_indices,
    }
    return {stream: index[:, None].float() + 1 for stream, index in indices.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_joining_puts_every_row_where_the_layout_has_it(name):
    layout = LAYOUTS[name]
    joined = layout.spans.join(_numbered(layout))
    assert joined.shape == (layout.total_rows, 1)
    assert joined[: layout.num_rows, 0].tolist() == list(range(1, layout.num_rows + 1))
    assert not joined[layout.num_rows :].any()


@pytest.mark.parametrize("name", LAYOUTS)
def test_picking_undoes_it(name):
    layout = LAYOUTS[name]
    rows, (start, stop) = _numbered(layout), layout.spans.media
    video, audio = layout.spans.pick(layout.spans.join(rows)[start:stop], Stream.VIDEO, Stream.AUDIO)
    assert torch.equal(video, rows[Stream.VIDEO])
    assert torch.equal(audio, rows[Stream.AUDIO])


def test_rows_of_one_span_are_not_copied():
    layout = LAYOUTS["words"]
    start, stop = layout.spans.media
    assert start == layout.num_text  # text alone at the front needs no output
    assert stop == layout.num_rows
    x = torch.randn(stop - start, 7)
    video, audio = layout.spans.pick(x, Stream.VIDEO, Stream.AUDIO)
    assert {video.untyped_storage().data_ptr(), audio.untyped_storage().data_ptr()} == {x.data_ptr()}


def test_a_stream_without_rows_gives_none():
    layout = build_layout(
        text_tags=torch.ones(3, dtype=torch.long),
        latent_frames=2,
        latent_height=4,
        latent_width=4,
        audio_latents=0,
        patch_size=(1, 2, 2),
    )
    rows = {Stream.TEXT: torch.ones(3, 2), Stream.VIDEO: torch.ones(8, 2), Stream.AUDIO: torch.ones(0, 2)}
    assert layout.spans.join(rows).shape == (11, 2)
    video, audio = layout.spans.pick(torch.ones(8, 2), Stream.VIDEO, Stream.AUDIO)
    assert (video.shape, audio.shape) == ((8, 2), (0, 2))
