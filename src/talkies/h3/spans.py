"""How the rows of a sequence are made of the rows of its streams, as lengths: all of it worked out once a layout.

A request of words alone has three spans, text | audio | video; each request of a shared forward adds its own. Splitting
and concatenating take one call of torch each, however many spans there are.

S rows, D hidden, P projected channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor


class Stream(Enum):
    """Where a row's content comes from."""

    TEXT = "text"
    VIDEO = "video"
    AUDIO = "audio"


class Spans:
    """Rows of one stream side by side are one span. A stream's own rows are in the order of the sequence."""

    def __init__(self, lengths: Iterable[tuple[Stream, int]], total_rows: int) -> None:
        """``lengths``: of the segments, in row order. What ``total_rows`` has beyond them is padding."""
        grouped = [(stream, sum(n for _, n in group)) for stream, group in groupby(lengths, key=lambda pair: pair[0])]
        self._grouped, self.total_rows = grouped, total_rows
        self._lengths = {stream: [n for s, n in grouped if s is stream] for stream in Stream}
        # Which of all streams' spans, one stream after another, is the next in the sequence.
        numbered = {stream: iter(range(self._before(stream), len(grouped))) for stream in Stream}
        self._order = [next(numbered[stream]) for stream, _ in grouped]
        num_rows = sum(n for _, n in grouped)
        self._num_padding = total_rows - num_rows
        # Media: from the first row that is not text to the last one.
        num_leading = next((n for stream, n in grouped[:1] if stream is Stream.TEXT), 0)
        self.media = (num_leading, num_rows)
        inside = grouped[1:] if num_leading else grouped
        self._media_lengths = [n for _, n in inside]
        self._of_media = {stream: [i for i, (s, _) in enumerate(inside) if s is stream] for stream in Stream}

    def _before(self, stream: Stream) -> int:
        streams = list(Stream)
        return sum(len(self._lengths[s]) for s in streams[: streams.index(stream)])

    def join(self, rows: Mapping[Stream, Tensor]) -> Tensor:
        """The streams' rows of one dtype -> [S, D] in the order of the sequence, padding rows zero."""
        parts = [part for stream in Stream for part in rows[stream].split(self._lengths[stream])]
        joined = [parts[i] for i in self._order]
        if self._num_padding:
            text = rows[Stream.TEXT]  # any stream has the width and the dtype; a share may be padding alone
            joined.append(text.new_zeros(self._num_padding, text.shape[1]))
        return torch.cat(joined)

    def pick(self, rows_SP: Tensor, *streams: Stream) -> list[Tensor]:
        """The rows of each of ``streams`` out of those between :attr:`media`, in its order; a view where they are one
        span."""
        parts = rows_SP.split(self._media_lengths)
        return [_cat([parts[i] for i in self._of_media[stream]], rows_SP) for stream in streams]

    def share(self, start: int, stop: int) -> SpansShare:
        """Rows ``start .. stop`` of the sequence, padding included, and which rows of each stream they are."""
        at, lengths = 0, list[tuple[Stream, int]]()
        before, inside = dict.fromkeys(Stream, 0), dict.fromkeys(Stream, 0)
        for stream, n in self._grouped:
            before[stream] += max(0, min(start, at + n) - at)
            mine = max(0, min(stop, at + n) - max(start, at))
            inside[stream] += mine
            if mine:
                lengths.append((stream, mine))
            at += n
        ranges = {stream: (before[stream], before[stream] + inside[stream]) for stream in Stream}
        return SpansShare(start, stop, Spans(lengths, stop - start), ranges)


class Arranged(Protocol):
    """What has spans: a layout, or a share of one."""

    @property
    def spans(self) -> Spans: ...


@dataclass(frozen=True, slots=True)
class SpansShare:
    """Rows ``start .. stop`` of a sequence. Since a stream's rows are in the order of the sequence, those inside are
    side by side in the stream, too: ``ranges`` says which (start, stop)."""

    start: int
    stop: int
    spans: Spans
    ranges: Mapping[Stream, tuple[int, int]]

    def of(self, stream: Stream, rows: Tensor) -> Tensor:
        """The share's rows of all rows of ``stream``; a view."""
        first, last = self.ranges[stream]
        return rows[first:last]

    def count(self, stream: Stream) -> int:
        """Rows of ``stream`` in the share."""
        first, last = self.ranges[stream]
        return last - first


def _cat(parts: list[Tensor], like_SP: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else like_SP[:0]
