"""Which timestep each row is at (docs/model.md, Timesteps of rows). S rows, M distinct timesteps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talkies.h3.config import TAG_VIDEO
from talkies.h3.layout import PackedLayout, Role, Segment
from talkies.kernels.runs import RowRuns

VISUAL_CONDITION_T = 0.999  # keyframes, visual references and locked picture are held just short of clean
AUDIO_CONDITION_T = 1.0  # reference audio and locked sound are held clean


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward's modulation needs. Timesteps are float32 values held as exact Python floats."""

    pairs: tuple[tuple[float, int], ...]  # (timestep, modality), sorted; the entries of ``rows``
    rows: RowRuns
    timesteps: tuple[float, ...]  # distinct, sorted; the entries of ``output_rows``
    output_rows: RowRuns


def row_timesteps(layout: PackedLayout, t_video: Tensor, t_audio: Tensor) -> tuple[Tensor, Tensor]:
    """``(distinct [M] float32, sorted; index [S] int64)`` for target timesteps, float32, 0-d or one a request."""
    of = _TimestepOf(layout, t_video, t_audio)
    rows_S = torch.empty(layout.total_rows, dtype=torch.float32)
    for segment in layout.segments:
        rows_S[segment.start : segment.stop] = of(segment)
    rows_S[layout.num_rows :] = of.padding
    return torch.unique(rows_S, sorted=True, return_inverse=True)


def step_plan(layout: PackedLayout, t_video: Tensor, t_audio: Tensor) -> StepPlan:
    """The (timestep, modality) pairs of one forward and the rows that use each: what modulation needs."""
    of = _TimestepOf(layout, t_video, t_audio)
    spans: list[tuple[int, tuple[float, int]]] = []
    for segment in layout.segments:
        t = of(segment)
        spans.extend((count, (t, tag)) for count, tag in _tag_runs(layout, segment))
    # The padding tag -1 looks up video's entry like the reference; its rows are never read.
    spans.append((layout.total_rows - layout.num_rows, (of.padding, TAG_VIDEO)))
    spans = [span for span in spans if span[0]]
    pairs = tuple(sorted({pair for _, pair in spans}))
    timesteps = tuple(sorted({t for t, _ in pairs}))
    return StepPlan(
        pairs=pairs,
        rows=RowRuns.of((count, pairs.index(pair)) for count, pair in spans),
        timesteps=timesteps,
        output_rows=RowRuns.of((count, timesteps.index(pair[0])) for count, pair in spans),
    )


def _tag_runs(layout: PackedLayout, segment: Segment) -> list[tuple[int, int]]:
    """``(num_rows, tag)`` runs of a segment; only text changes its tag inside (vision blocks)."""
    if segment.role is not Role.TEXT:
        return [(segment.stop - segment.start, int(layout.tags[segment.start]))]
    tags, counts = torch.unique_consecutive(layout.tags[segment.start : segment.stop], return_counts=True)
    return list(zip(counts.tolist(), tags.tolist(), strict=True))


class _TimestepOf:
    """Segment -> its timestep as a float32 value."""

    def __init__(self, layout: PackedLayout, t_video: Tensor, t_audio: Tensor) -> None:
        self.video = t_video.float().reshape(-1).expand(layout.num_requests).tolist()
        self.audio = t_audio.float().reshape(-1).expand(layout.num_requests).tolist()
        self.padding = self.video[-1]

    def __call__(self, segment: Segment) -> float:
        match segment.role:
            case Role.VIDEO_CONDITION | Role.VIDEO_LOCKED:
                return _float32(max(self.video[segment.request], VISUAL_CONDITION_T))
            case Role.AUDIO_CONDITION | Role.AUDIO_LOCKED:
                return _float32(max(self.audio[segment.request], AUDIO_CONDITION_T))
            case Role.AUDIO_TARGET:
                return self.audio[segment.request]
            case _:
                return self.video[segment.request]


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()
