"""The packed sequence: row order, tags, positions and documents of one forward (docs/model.md, Row order).

    t2va, fl2va :  text | keyframes         | target audio | target video | (structural padding)
    ref2va      :  text | reference blocks  | target audio | target video | (structural padding)

Locked rows are rows of the target that are given. Their place, tag and position are those of the rows that they stand
for; only their role is another.

What comes out is a ``PackedLayout`` (``layout.py``). ``__all__`` is what other rooms need of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from talkies.errors import InvalidRequest
from talkies.h3 import positions as pos
from talkies.h3.conditions import AudioCondition, PackedCondition, VisualCondition
from talkies.h3.config import TAG_AUDIO, TAG_VIDEO
from talkies.h3.layout import PackedLayout, Role, Segment, concat_layouts
from talkies.h3.locks import LockedLatents, Span
from talkies.h3.rows import audio_to_rows, patchify_video, rows_to_audio, unpatchify_video
from talkies.h3.spans import Stream

__all__ = [
    "AudioCondition",
    "PackedCondition",
    "PackedLayout",
    "Role",
    "Segment",
    "Stream",
    "VisualCondition",
    "audio_to_rows",
    "build_layout",
    "concat_layouts",
    "patchify_video",
    "rows_to_audio",
    "unpatchify_video",
]

NOTHING_LOCKED = LockedLatents()


def build_layout(
    *,
    text_tags: Tensor,
    latent_frames: int,
    latent_height: int,
    latent_width: int,
    audio_latents: int,
    patch_size: tuple[int, int, int],
    conditions: Sequence[PackedCondition] = (),
    isolate: Literal["modality"] | None = None,
    num_audio_channels: int = 2,
    locked: LockedLatents = NOTHING_LOCKED,
) -> PackedLayout:
    """The layout of one request: t2va without conditions, fl2va with keyframes, ref2va with references.

    ``text_tags`` [L]: 1 for text rows, 0 for the rows of a vision block (its start, pads and end). Target sizes are
    latents, ``audio_latents`` per channel. ``isolate="modality"``, for models trained that way, groups the rows as
    text | video | audio and makes each group a document of its own. ``locked`` latents of the target sit at their own
    timestep, for models trained that way.

    Raises ``InvalidRequest`` for keyframes of another size than the target, or keyframes beside references.
    """
    builder = _Builder(
        text_tags, pos.Grid(latent_height, latent_width, patch_size), patch_size, num_audio_channels, latent_frames
    )
    keyframes = [c for c in conditions if isinstance(c, VisualCondition) and c.is_keyframe]
    if keyframes and len(keyframes) != len(conditions):
        raise InvalidRequest(
            "keyframes and references in one request", hint="use fl2va or ref2va, not both", param="conditions"
        )
    for c in keyframes:
        if (c.latent_frames, c.latent_height, c.latent_width) != (1, latent_height, latent_width):
            raise InvalidRequest(
                f"a keyframe has latents {c.latent_frames}x{c.latent_height}x{c.latent_width}, "
                f"the target frame 1x{latent_height}x{latent_width}",
                hint="resize the keyframe to the canvas",
                param="conditions",
            )
    for condition in conditions:
        builder.add_condition(condition)
    builder.add_target(audio_latents, locked)
    return builder.finish(isolate)


class _Block(NamedTuple):
    stream: Stream
    role: Role
    positions: Tensor


class _Builder:
    """Walks the blocks in row order and keeps the media clock, which starts at L."""

    def __init__(
        self,
        text_tags: Tensor,
        target: pos.Grid,
        patch_size: tuple[int, int, int],
        num_audio_channels: int,
        latent_frames: int,
    ) -> None:
        self.target = target
        self.patch_size = patch_size
        self.num_audio_channels = num_audio_channels
        self.latent_frames = latent_frames
        self.text_tags = text_tags.to(torch.int8).cpu()
        self.num_text = text_tags.shape[0]
        self.clock = float(self.num_text)
        self.blocks = [_Block(Stream.TEXT, Role.TEXT, pos.text(self.num_text))]

    def add_video(self, role: Role, times_T: Tensor, grid: pos.Grid) -> None:
        self.blocks.append(_Block(Stream.VIDEO, role, grid.video(times_T)))

    def add_audio(self, role: Role, audio_latents: int, grid: pos.Grid) -> None:
        positions = grid.audio(audio_latents, self.clock, self.num_audio_channels)
        self.blocks.append(_Block(Stream.AUDIO, role, positions))

    def add_target(self, audio_latents: int, locked: LockedLatents) -> None:
        sound = self.target.audio(audio_latents, self.clock, self.num_audio_channels)
        for channel in sound.split(audio_latents):  # channel-major: the same spans in each
            self._add_runs(Stream.AUDIO, Role.AUDIO_TARGET, Role.AUDIO_LOCKED, channel, locked.audio)
        video = self.target.video(pos.frame_times(self.latent_frames, self.clock))
        rows = self.target.rows_per_frame
        spans = [Span(start * rows, stop * rows) for start, stop in locked.video]
        self._add_runs(Stream.VIDEO, Role.VIDEO_TARGET, Role.VIDEO_LOCKED, video, spans)

    def _add_runs(self, stream: Stream, made: Role, given: Role, positions: Tensor, spans: Sequence[Span]) -> None:
        """Rows in their order, as blocks of one role each; a block like the one before it goes on with that one."""
        edges = [0, *(edge for span in spans for edge in span), positions.shape[0]]
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            role = given if number % 2 else made
            last = self.blocks[-1]
            if start == stop:
                continue
            if last.role is role:
                self.blocks[-1] = last._replace(positions=torch.cat((last.positions, positions[start:stop])))
            else:
                self.blocks.append(_Block(stream, role, positions[start:stop]))

    def add_condition(self, condition: PackedCondition) -> None:
        if isinstance(condition, AudioCondition):
            # A sound without a picture sits at the ends of the target's width axis.
            self.add_audio(Role.AUDIO_CONDITION, condition.audio_latents, self.target)
            self.clock += float(condition.audio_latents)
            return
        grid = pos.Grid(condition.latent_height, condition.latent_width, self.patch_size)
        match condition.kind:
            case "keyframe-first":
                self.add_video(Role.VIDEO_CONDITION, self._at(self.clock), grid)
            case "keyframe-last":
                end = self.clock + pos.pairwise_span(self.latent_frames) - pos.UNITS_PER_FRAME
                self.add_video(Role.VIDEO_CONDITION, self._at(end), grid)
            case "image":
                self.add_video(Role.VIDEO_CONDITION, self._at(self.clock), grid)
                self.clock += 1.0
            case "video":
                if condition.audio_latents:
                    self.add_audio(Role.AUDIO_CONDITION, condition.audio_latents, grid)
                self.add_video(Role.VIDEO_CONDITION, pos.frame_times(condition.latent_frames, self.clock), grid)
                self.clock += max(float(condition.audio_latents), pos.running_span(condition.latent_frames))

    @staticmethod
    def _at(time: float) -> Tensor:
        return torch.tensor([time], dtype=torch.float64)

    def finish(self, isolate: Literal["modality"] | None) -> PackedLayout:
        blocks = [block for block in self.blocks if block.positions.shape[0]]
        if isolate == "modality":
            # One document per modality needs each modality's rows side by side.
            order = {Stream.TEXT: 0, Stream.VIDEO: 1, Stream.AUDIO: 2}
            blocks = sorted(blocks, key=lambda b: order[b.stream])
        segments, start = [], 0
        next_source = dict.fromkeys(Stream, 0)
        for block in blocks:
            rows = block.positions.shape[0]
            segments.append(Segment(block.stream, block.role, start, start + rows, next_source[block.stream], 0))
            next_source[block.stream] += rows
            start += rows
        tag_of = {Stream.VIDEO: TAG_VIDEO, Stream.AUDIO: TAG_AUDIO}
        tags = [
            self.text_tags
            if block.stream is Stream.TEXT
            else torch.full((block.positions.shape[0],), tag_of[block.stream], dtype=torch.int8)
            for block in blocks
        ]
        lengths = tuple(next_source.values()) if isolate == "modality" else (start,)
        return PackedLayout(
            tags=torch.cat(tags),
            positions=torch.cat([block.positions for block in blocks]),
            segments=tuple(segments),
            document_lengths=lengths,
        )
