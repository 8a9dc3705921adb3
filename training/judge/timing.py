"""When something happens in a clip: least-squares fits of the world's own motions to what was tracked.

F frames, G points of a grid. Times are seconds from the clip's first frame.

    bounce, flash   over period and first event, then each event on its own
    slide           over start and wall hit
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from training import world

TEMPO_SPLIT_S = float(np.sqrt(world.PERIOD_S[0] * world.PERIOD_S[1]))
CROSSING_SPLIT_S = float(np.sqrt(world.CROSSING_S[0] * world.CROSSING_S[1]))


@dataclass(frozen=True, slots=True)
class Laws:
    """When the first bounce or flash of a clip can come: with one event in sight the period shows only in that.

    `latest_s` are bounds in seconds for (slow, fast); None means half a period from the start, and dim before it.
    """

    latest_s: tuple[float, float] | None

    @property
    def is_dim_first(self) -> bool:
        return self.latest_s is None

    def allow(self, period_G: np.ndarray, first_G: np.ndarray) -> np.ndarray:
        if self.latest_s is None:
            return np.abs(first_G - period_G / 2) < 0.15
        slow_s, fast_s = self.latest_s
        return first_G < np.where(period_G < TEMPO_SPLIT_S, fast_s, slow_s)


# By the canvas' short edge in units of 64 px: the first edition starts at an apex, the second anywhere.
LAWS = {1: Laws(None), 2: Laws((0.6, 0.45))}


def periodic_form(
    motion: int, time_s: np.ndarray, period_s: np.ndarray, first_s: np.ndarray, is_dim_first: bool
) -> np.ndarray:
    """The signal of a bounce (height) or a flash (intensity), 0..1, for grids of periods and first events."""
    since = np.mod(time_s - first_s, period_s)
    if motion == world.BOUNCE:
        lift = since / period_s
        return 4 * lift * (1 - lift)
    return np.exp(-since / world.FLASH_DECAY_S) * ((time_s >= first_s - 1e-6) | (not is_dim_first))


@lru_cache(maxsize=32)
def periodic_grid(
    motion: int, num_frames: int, frame_s: float, is_dim_first: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Periods [G], first events [G] and forms [G, F]."""
    pairs = [(p, t) for p in np.arange(0.36, 1.26, 0.02) for t in np.arange(0, p, 0.0125)]
    period, first = np.array(pairs, np.float32).T
    time_s = np.arange(num_frames, dtype=np.float32) * frame_s
    return (
        period,
        first,
        periodic_form(motion, time_s, period[:, None], first[:, None], is_dim_first).astype(np.float32),
    )


def misfit(form_GF: np.ndarray, signal_F: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares signal = gain * form + offset with gain >= 0: squared error, gain and offset, each [G]."""
    mean_G, mean = form_GF.mean(1), signal_F.mean()
    spread = (form_GF * form_GF).mean(1) - mean_G**2
    shared = form_GF @ signal_F / len(signal_F) - mean_G * mean
    gain = np.maximum(shared, 0) / np.maximum(spread, 1e-6)
    error = ((signal_F - mean) ** 2).mean() - gain * (2 * shared - gain * spread)
    return error, gain, mean - gain * mean_G


def calm(signal_F: np.ndarray, fitted_F: np.ndarray) -> np.ndarray:
    """The signal with outliers pulled in to three typical deviations of the fit."""
    rest = signal_F - fitted_F
    reach = 3 * 1.5 * float(np.median(np.abs(rest))) + 1e-3
    return fitted_F + np.clip(rest, -reach, reach)


def periodic(time_s: np.ndarray, signal_F: np.ndarray, motion: int, laws: Laws) -> tuple[bool, np.ndarray]:
    """Is it fast, and the times of the events inside the clip."""
    signal_F = signal_F.astype(np.float32)
    end_s = len(time_s) * float(time_s[1])
    period_G, first_G, form_GF = periodic_grid(motion, len(time_s), float(time_s[1]), laws.is_dim_first)
    error, gain, offset = misfit(form_GF, signal_F)
    best = error.argmin()
    signal_F = calm(signal_F, gain[best] * form_GF[best] + offset[best])
    error = misfit(form_GF, signal_F)[0]
    best = error.argmin()
    lawful = laws.allow(period_G, first_G)
    fast = period_G < TEMPO_SPLIT_S
    is_fast = bool(error[fast & lawful].min() < error[~fast & lawful].min())

    periods = period_G[best] + np.arange(-0.02, 0.0201, 0.002)
    firsts = first_G[best] + np.arange(-0.0125, 0.0126, 0.0025)
    period, first = (grid.ravel() for grid in np.meshgrid(periods, firsts))
    form = periodic_form(motion, time_s, period[:, None], first[:, None], laws.is_dim_first)
    error, gain, offset = misfit(form, signal_F)
    best = error.argmin()
    events = np.arange(first[best], end_s - 1e-3, period[best])
    events = [nudge(time_s, (signal_F - offset[best]) / gain[best], motion, period[best], event) for event in events]
    return is_fast, np.array([event for event in events if 0 <= event < end_s])


def nudge(time_s: np.ndarray, form_F: np.ndarray, motion: int, period_s: float, event_s: float) -> float:
    """Moves one event to where the frames around it want it: a generated clip need not keep time exactly."""
    near = np.abs(time_s - event_s) < 0.4 * period_s
    shifts = np.arange(-0.1, 0.1001, 0.0025)
    # an event is a corner whose two sides belong to it and to the one before
    forms = periodic_form(motion, time_s[near], period_s, event_s + shifts[:, None] - period_s, True)
    event_s = float(event_s + shifts[((forms - form_F[near]) ** 2).mean(1).argmin()])
    if motion == world.FLASH:  # fading is the same at every scale, so the onset is the first frame that shows it
        return float(time_s[np.searchsorted(time_s, event_s - 1e-3).clip(max=len(time_s) - 1)])
    return event_s


@lru_cache(maxsize=32)
def slide_grid(num_frames: int, frame_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts [G], wall hits [G] and forms [G, F]: 0 before the start, 1 after the hit."""
    pairs = [(a, b) for a in np.arange(0, 0.31, 0.02) for b in np.arange(a + 0.3, 2.6, 0.0125)]
    start, hit = np.array(pairs, np.float32).T
    time_s = np.arange(num_frames, dtype=np.float32) * frame_s
    return start, hit, np.clip((time_s - start[:, None]) / (hit - start)[:, None], 0, 1).astype(np.float32)


def slide(time_s: np.ndarray, x_F: np.ndarray, room_px: float) -> tuple[bool, np.ndarray]:
    """Is it fast, and the time of the wall hit if the clip shows it."""
    frame_s = float(time_s[1])
    x_F = np.abs(x_F - x_F[:3].mean()).astype(np.float32)
    start, hit, form = slide_grid(len(time_s), frame_s)
    error, gain, offset = misfit(form, x_F)
    best = error.argmin()
    x_F = calm(x_F, gain[best] * form[best] + offset[best])
    error, gain, _ = misfit(form, x_F)
    best = error.argmin()
    hits = hit[best] + np.arange(-0.0125, 0.0126, 0.0025)
    fine = np.clip((time_s - start[best]) / (hits - start[best])[:, None], 0, 1)
    hit_s = float(hits[misfit(fine, x_F)[0].argmin()])
    crossing_s = room_px * (hit_s - start[best]) / max(float(gain[best]), 1e-3)
    shown = hit_s < (len(time_s) - 1.9) * frame_s  # two frames of rest, or the hit is a guess
    return bool(crossing_s < CROSSING_SPLIT_S), np.array([hit_s] if shown else [])
