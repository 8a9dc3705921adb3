"""The packed sequence: row order, tags, positions and documents of one forward (tests/parity/test_packing.py).

    t2va, fl2va :  text | keyframes         | target audio | target video | (structural padding)
    ref2va      :  text | reference blocks  | target audio | target video | (structural padding)

S rows. A layout describes; rows themselves travel as ``video_rows`` [Nv, C * 4] and ``audio_rows`` [Na, C], in
both of which the condition rows come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from talkies.attention.base import Documents
from talkies.errors import InvalidRequest
from talkies.model import positions as pos
from talkies.model.conditions import AudioCondition, Condition, VisualCondition
from talkies.model.rows import audio_to_rows, patchify_video, rows_to_audio, unpatchify_video
from talkies.model.spans import Spans, Stream
from talkies.model.timesteps import Role, StepPlan, row_timesteps, step_plan

__all__ = [
    "AudioCondition",
    "Condition",
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

ROW_MULTIPLE = 64  # rows of one block in attention kernels and sequence shards


class Segment(NamedTuple):
    """Rows ``start .. stop`` of the sequence hold rows ``source .. `` of their stream's tensor."""

    stream: Stream
    role: Role
    start: int
    stop: int
    source: int
    request: int  # which request of a co-batched forward; 0 when alone


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedLayout:
    """One forward's rows. Built by :func:`build_layout` and :func:`concat_layouts`, never changed after."""

    tags: Tensor  # int8 [S]: 0 video, 1 text, 2 audio, -1 padding
    positions: Tensor  # float64 [S, 3]
    segments: tuple[Segment, ...]  # in row order, without padding
    document_lengths: tuple[int, ...]
    num_requests: int = 1

    @cached_property
    def num_rows(self) -> int:
        """Valid rows."""
        return self.segments[-1].stop

    @property
    def total_rows(self) -> int:
        """Rows with structural padding: the S of every [S, ...] tensor of this layout."""
        return self.tags.shape[0]

    def _count(self, *roles: Role) -> int:
        return sum(s.stop - s.start for s in self.segments if s.role in roles)

    @cached_property
    def num_text(self) -> int:
        return self._count(Role.TEXT)

    @cached_property
    def num_condition_video_rows(self) -> int:
        return self._count(Role.VIDEO_CONDITION)

    @cached_property
    def num_condition_audio_rows(self) -> int:
        return self._count(Role.AUDIO_CONDITION)

    @cached_property
    def num_video_rows(self) -> int:
        """Condition and target rows together."""
        return self._count(Role.VIDEO_CONDITION, Role.VIDEO_TARGET)

    @cached_property
    def num_audio_rows(self) -> int:
        return self._count(Role.AUDIO_CONDITION, Role.AUDIO_TARGET)

    def of_stream(self, stream: Stream) -> list[Segment]:
        """The stream's segments in the order of its row tensor."""
        return sorted((s for s in self.segments if s.stream is stream), key=lambda s: s.source)

    @cached_property
    def spans(self) -> Spans:
        """Between the sequence and the streams, for what happens at every step."""
        return Spans(((s.stream, s.stop - s.start) for s in self.segments), self.total_rows)

    @cached_property
    def text_indices(self) -> Tensor:
        """Sequence position of each text row, int64 [L]."""
        return self._indices(Stream.TEXT)

    @cached_property
    def video_indices(self) -> Tensor:
        """Sequence position of each video row, int64 [Nv]; condition rows first."""
        return self._indices(Stream.VIDEO)

    @cached_property
    def audio_indices(self) -> Tensor:
        """Sequence position of each audio row, int64 [Na]; condition rows first."""
        return self._indices(Stream.AUDIO)

    def _indices(self, stream: Stream) -> Tensor:
        spans = [torch.arange(s.start, s.stop) for s in self.of_stream(stream)]
        return torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64)

    @cached_property
    def documents(self) -> Documents | None:
        """Who attends to whom; ``None`` when every row is valid and in one document."""
        documents = Documents.of_lengths(self.document_lengths, self.total_rows)
        return None if documents.num_documents == 1 and documents.num_valid == self.total_rows else documents

    @cached_property
    def text_documents(self) -> Documents | None:
        """Documents of the text rows alone, for the refiner: one a request."""
        lengths = [s.stop - s.start for s in self.of_stream(Stream.TEXT)]
        return None if len(lengths) == 1 else Documents.of_lengths(lengths)

    def row_timesteps(self, t_video: Tensor, t_audio: Tensor) -> tuple[Tensor, Tensor]:
        """``(distinct [M] float32, sorted; index [S] int64)`` for target timesteps, float32, 0-d or one a request."""
        return row_timesteps(self, t_video, t_audio)

    def step_plan(self, t_video: Tensor, t_audio: Tensor) -> StepPlan:
        """The (timestep, modality) pairs of one forward and the rows that use each: what modulation needs."""
        return step_plan(self, t_video, t_audio)

    def padded(self, multiple: int = ROW_MULTIPLE) -> PackedLayout:
        """The same layout with structural padding up to a multiple: tag -1, position 0, in no document."""
        pad = -self.num_rows % multiple
        if self.num_rows + pad == self.total_rows:
            return self
        tags = torch.cat((self.tags[: self.num_rows], self.tags.new_full((pad,), -1)))
        positions = torch.cat((self.positions[: self.num_rows], self.positions.new_zeros(pad, 3)))
        return replace(self, tags=tags, positions=positions)


def build_layout(
    *,
    text_tags: Tensor,
    latent_frames: int,
    latent_height: int,
    latent_width: int,
    audio_latents: int,
    patch_size: tuple[int, int, int],
    conditions: Sequence[Condition] = (),
    isolate: Literal["modality"] | None = None,
    num_audio_channels: int = 2,
) -> PackedLayout:
    """The layout of one request: t2va without conditions, fl2va with keyframes, ref2va with references.

    ``text_tags`` [L]: 1 for text rows, 0 for the rows of a vision block (its start, pads and end). Target sizes are
    latents, ``audio_latents`` per channel. ``isolate="modality"``, for models trained that way, groups the rows as
    text | video | audio and makes each group a document of its own.

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
    builder.add_audio(Role.AUDIO_TARGET, audio_latents, builder.target)
    builder.add_video(Role.VIDEO_TARGET, pos.frame_times(latent_frames, builder.clock), builder.target)
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

    def add_condition(self, condition: Condition) -> None:
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
        tag_of = {Stream.VIDEO: 0, Stream.AUDIO: 2}
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


def concat_layouts(layouts: Sequence[PackedLayout]) -> PackedLayout:
    """Several requests in one forward. They never see each other: each keeps its own documents.

    Stream tensors concatenate request by request (each with its condition rows first), and so do the refined texts.
    """
    tags, positions = [], []
    segments: list[Segment] = []
    lengths: list[int] = []
    row, request = 0, 0
    sources: dict[Stream, int] = dict.fromkeys(Stream, 0)
    for layout in layouts:
        tags.append(layout.tags[: layout.num_rows])
        positions.append(layout.positions[: layout.num_rows])
        lengths.extend(layout.document_lengths)
        counts: dict[Stream, int] = dict.fromkeys(Stream, 0)
        for s in layout.segments:
            segments.append(
                Segment(
                    s.stream, s.role, s.start + row, s.stop + row, s.source + sources[s.stream], s.request + request
                )
            )
            counts[s.stream] += s.stop - s.start
        sources = {stream: sources[stream] + counts[stream] for stream in Stream}
        row += layout.num_rows
        request += layout.num_requests
    return PackedLayout(
        tags=torch.cat(tags),
        positions=torch.cat(positions),
        segments=tuple(segments),
        document_lengths=tuple(lengths),
        num_requests=request,
    )
