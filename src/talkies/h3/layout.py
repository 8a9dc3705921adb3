"""What one forward's rows are: their order, tags, positions and documents. Built in ``packing.py``.

S rows, L text rows, Nv video rows, Na audio rows. A layout describes; rows themselves travel as ``video_rows``
[Nv, C * 4] and ``audio_rows`` [Na, C], in both of which the condition rows come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from talkies.attention.base import Documents
from talkies.h3.spans import Spans, Stream

ROW_MULTIPLE = 64  # rows of one block in attention kernels and sequence shards


class Role(Enum):
    """What decides a row's timestep."""

    TEXT = "text"
    VIDEO_CONDITION = "video-condition"
    VIDEO_TARGET = "video-target"
    VIDEO_LOCKED = "video-locked"  # of the target, but given
    AUDIO_CONDITION = "audio-condition"
    AUDIO_TARGET = "audio-target"
    AUDIO_LOCKED = "audio-locked"


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

    tags: Tensor  # int8 [S]: TAG_* of ``config.py``; -1 padding
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
        return self._count(Role.VIDEO_CONDITION, Role.VIDEO_TARGET, Role.VIDEO_LOCKED)

    @cached_property
    def num_audio_rows(self) -> int:
        return self._count(Role.AUDIO_CONDITION, Role.AUDIO_TARGET, Role.AUDIO_LOCKED)

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

    def padded(self, multiple: int = ROW_MULTIPLE) -> PackedLayout:
        """The same layout with structural padding up to a multiple: tag -1, position 0, in no document."""
        pad = -self.num_rows % multiple
        if self.num_rows + pad == self.total_rows:
            return self
        tags = torch.cat((self.tags[: self.num_rows], self.tags.new_full((pad,), -1)))
        positions = torch.cat((self.positions[: self.num_rows], self.positions.new_zeros(pad, 3)))
        return replace(self, tags=tags, positions=positions)


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
