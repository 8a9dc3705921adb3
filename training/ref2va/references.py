"""A batch of ref2va requests: the rows of its reference conditions and what the text encoder reads of them.

Row order, positions and tags come from the engine's own `talkies.h3.packing`, for it is what the trained DiT serves
through (tests/training/test_references.py compares the two forwards and the two presentations).

L text rows, S rows; `training.dit.batched` has the other letters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from talkies.h3 import packing
from talkies.h3.vision import VisionSizes, pair_timestamps, sample_indices
from training.components import PATCH, SPATIAL_FACTOR
from training.dit import batched, text
from training.dit.batched import num_latent_frames
from training.world import FPS, Canvas, num_audio_latents

PATCHES = VisionSizes()  # only its frame counts are used here: sizes follow from the canvas
SLOT_OF_ROLE = {
    packing.Role.VIDEO_CONDITION: batched.VIDEO_AT_ANCHOR,
    packing.Role.AUDIO_CONDITION: batched.AUDIO_AT_ONE,
    packing.Role.VIDEO_TARGET: batched.VIDEO_AT_TV,
    packing.Role.AUDIO_TARGET: batched.AUDIO_AT_TA,
}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A picture (one frame), a clip (`num_frames` = 17n + 5) or, without a canvas, a sound.

    `num_audio_latents` per channel: the sound's, or the soundtrack's; 0 is a silent clip.
    """

    canvas: Canvas | None = None
    num_frames: int = 1
    num_audio_latents: int = 0

    @property
    def is_video(self) -> bool:
        return self.num_frames > 1

    @property
    def sampled_frames(self) -> list[int]:
        """The frames of a clip that the text encoder sees, as pairs: an odd count repeats the last one."""
        frames = sample_indices(self.num_frames, FPS, PATCHES)
        return frames + frames[-1:] * (len(frames) % PATCHES.temporal_patch_size)

    def condition(self) -> packing.Condition:
        if self.canvas is None:
            return packing.AudioCondition(audio_latents=self.num_audio_latents)
        return packing.VisualCondition(
            kind="video" if self.is_video else "image",
            latent_height=self.canvas.height // SPATIAL_FACTOR,
            latent_width=self.canvas.width // SPATIAL_FACTOR,
            latent_frames=num_latent_frames(self.num_frames) if self.is_video else 1,
            audio_latents=self.num_audio_latents,
        )


@dataclass(frozen=True)
class ReferenceLayout(batched.Layout):
    """A batch layout whose conditions are references, in request order. `keyframes` stays empty."""

    references: tuple[Reference, ...] = ()

    @cached_property
    def packed(self) -> packing.PackedLayout:
        """The engine's layout of one sample."""
        height, width = self.latent_size
        return packing.build_layout(
            text_tags=torch.where(torch.tensor(self.text_is_vision, dtype=torch.bool), 0, 1),
            latent_frames=num_latent_frames(self.num_frames),
            latent_height=height,
            latent_width=width,
            audio_latents=num_audio_latents(self.num_frames),
            patch_size=(1, PATCH, PATCH),
            conditions=[reference.condition() for reference in self.references],
        )

    @property
    def num_condition_rows(self) -> int:
        return self.packed.num_condition_video_rows + self.packed.num_condition_audio_rows

    def slots(self) -> Tensor:
        slots = torch.empty(self.packed.num_rows, dtype=torch.long)
        for segment in self.packed.segments:
            if segment.role is packing.Role.TEXT:
                is_vision = self.packed.tags[segment.start : segment.stop] == 0
                slots[segment.start : segment.stop] = torch.where(is_vision, batched.VIDEO_AT_TV, batched.TEXT_AT_TV)
            else:
                slots[segment.start : segment.stop] = SLOT_OF_ROLE[segment.role]
        return slots

    def positions(self) -> Tensor:
        return self.packed.positions


def layout_of(
    canvas: Canvas, num_frames: int, references: tuple[Reference, ...], presentation: text.Presentation
) -> ReferenceLayout:
    """The layout in front of the prompt, for `batched.Placer`."""
    layout = ReferenceLayout(canvas, num_frames, (), presentation.is_vision)
    return replace(layout, references=references)


def present(tokenizer, references: tuple[Reference, ...]) -> text.Presentation:
    """Labels and vision blocks as `codecs/text/presentation.py` writes them; sounds and soundtracks share a counter."""
    builder = text.PresentationBuilder(tokenizer)
    pictures = videos = sounds = 0
    for reference in references:
        if reference.num_audio_latents:
            sounds += 1
            builder.text(f"<Audio {sounds}>: ")
        if reference.canvas is None:
            continue
        size = text.encoder_image_size(reference.canvas)
        if not reference.is_video:
            pictures += 1
            builder.text(f"<Picture {pictures}>: ")
            builder.vision(size)
            continue
        videos += 1
        builder.text(f"<Video {videos}>: ")
        for seconds in pair_timestamps(len(sample_indices(reference.num_frames, FPS, PATCHES)), PATCHES):
            builder.text(f"<{seconds:.1f} seconds>")
            builder.vision(size, "<|video_pad|>")
    return builder.done()
