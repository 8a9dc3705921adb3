"""What of a clip is given, as media and as rows, and how it is joined with what the model makes.

Outside a lock's window the clip has the given samples or frames themselves, never their way through a VAE. Given and
made meet in a cross-fade that lies inside the window, at each of its ends that is not an end of the clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor

from talkies.h3.geometry import Geometry
from talkies.h3.layout import PackedLayout
from talkies.h3.locks import LockedLatents, LockPlan
from talkies.sampling.locks import LockedRows, Locks, lock_audio, lock_video
from talkies.sampling.noise import Noise

FADE_S = 0.02  # of sound
FADE_FRAMES = 2  # of picture

Mode = Literal["trained", "training-free"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """One lock: ``media`` is float32 [2, N] of a soundtrack or uint8 [F, H, W, 3] of footage, as long as the clip."""

    plan: LockPlan
    media: np.ndarray
    mode: Mode
    used: dict[str, Any]  # what became of the file, for the user
    sample_rate_hz: int

    @cached_property
    def made_share(self) -> np.ndarray:
        """How much of each sample or frame is made: float32 [N], 0 outside the window, 1 inside, between in fades."""
        first, last = self.plan.made
        share = np.zeros(self.plan.num_given, np.float32)
        share[first:last] = 1.0
        wanted = FADE_FRAMES if self.plan.role == "footage" else round(FADE_S * self.sample_rate_hz)
        length = min(wanted, (last - first) // 2)
        ramp = (np.arange(length, dtype=np.float32) + 1) / (length + 1)
        if first > 0:
            share[first : first + length] = ramp
        if last < self.plan.num_given:
            share[last - length : last] = ramp[::-1]
        return share

    def join_wave(self, made: np.ndarray) -> np.ndarray:
        """float32 [2, N] of both: the given samples bit for bit where nothing is made."""
        share = self.made_share
        return np.where(share == 0, self.media, (1 - share) * self.media + share * made)

    def join_frames(self, made: np.ndarray, first: int) -> np.ndarray:
        """uint8 [f, H, W, 3] of both, for the frames from ``first`` on."""
        share = self.made_share[first : first + len(made)]
        given = self.media[first : first + len(made)]
        joined = np.where((share == 0)[:, None, None, None], given, made)
        for i in np.flatnonzero((share > 0) & (share < 1)):
            mixed = (1 - share[i]) * given[i].astype(np.float32) + share[i] * made[i].astype(np.float32)
            joined[i] = np.rint(mixed).astype(np.uint8)
        return joined


def of_role(given: Sequence[Given], role: str) -> Given | None:
    """The lock of that role, if there is one."""
    return next((each for each in given if each.plan.role == role), None)


def locked_latents(given: Sequence[Given]) -> LockedLatents:
    """What the layout has to know: the latents of locks that sit at a timestep of their own."""
    own = {each.plan.role: each.plan.kept_latents for each in given if each.mode == "trained"}
    return LockedLatents(video=own.get("footage", ()), audio=own.get("soundtrack", ()))


def locks_of(
    given: Sequence[Given], clean_rows: Sequence[Tensor], noise: Noise, layout: PackedLayout, geometry: Geometry
) -> Locks:
    """``clean_rows``: of each lock, all rows of the target's stream as encoded."""
    found: dict[str, LockedRows] = {}
    for each, clean in zip(given, clean_rows, strict=True):
        is_video = each.plan.role == "footage"
        spans = each.plan.kept_rows(geometry)
        if not spans:
            continue  # the window touches every latent; what lies outside it is joined all the same
        lock = lock_video if is_video else lock_audio
        found[each.plan.role] = lock(
            clean,
            noise.video_rows if is_video else noise.audio_rows,
            spans,
            num_conditions=layout.num_condition_video_rows if is_video else layout.num_condition_audio_rows,
            is_trained=each.mode == "trained",
        )
    return Locks(found.get("footage", LockedRows()), found.get("soundtrack", LockedRows()))
