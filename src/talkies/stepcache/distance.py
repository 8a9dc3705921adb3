"""How far two sets of rows are apart: the relative L1 distance of each stream, one answer on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from talkies.stepcache.base import Course, Forward, target_spans

CHUNK_ROWS = 4096  # float32 copies of so many rows at a time


def relative_l1(now_SD: Tensor, before_SD: Tensor, course: Course, run: Forward) -> tuple[float, float]:
    """``mean(|now - before|) / mean(|before|)`` over the rows that are denoised, of video and of audio.

    A stream without such rows is at distance 0. Waits for the device, and is collective where ranks share the rows.
    """
    sums = torch.zeros(2, 2, dtype=torch.float64, device=now_SD.device)
    for stream, spans in enumerate(target_spans(course.layout, run.first_row, now_SD.shape[0])):
        for start, stop in spans:
            for at in range(start, stop, CHUNK_ROWS):
                rows = slice(at, min(stop, at + CHUNK_ROWS))
                before = before_SD[rows].float()
                sums[stream, 0] += (now_SD[rows].float() - before).abs_().sum(dtype=torch.float64)
                sums[stream, 1] += before.abs().sum(dtype=torch.float64)
    video, audio = run.total(sums).tolist()
    return _ratio(*video), _ratio(*audio)


def _ratio(difference: float, size: float) -> float:
    """What is not finite stays so: no threshold is above it."""
    return difference / size if size else (0.0 if difference == 0 else float("inf"))
