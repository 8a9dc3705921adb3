"""What the sound of a clip is: which timbre, when it starts, and where it stands between left and right.

N samples, E values of the envelope (one every HOP samples), K onsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from training import world

UNKNOWN = "unknown"
HOP, WINDOW = 80, 320  # 2.5 and 10 ms: one half wave of the drum's 70 Hz is 7 ms
AUDIBLE = 0.05  # RMS of both channels; the timbres start at 0.35 or more
RISE, SHARE_OF_PEAK = 1.7, 0.22
REST_S = 0.15  # no second onset this soon: the fastest are 0.5 s apart
LOOK_S = 0.1  # part of a sound that tells its timbre
MIN_LIKENESS = 0.6


@dataclass(frozen=True, slots=True)
class Heard:
    """`sound` is a timbre, "silent", or "unknown" for a noise like none of them; `pan` 0 is left, 1 right."""

    sound: str
    onset_s: tuple[float, ...]
    pan: tuple[float, ...]


def hear(wave_2N: np.ndarray, sample_rate_hz: int) -> Heard:
    """Listens to one clip, float32 [2, N]."""
    wave_2N = np.nan_to_num(np.asarray(wave_2N, np.float32))
    level_E = envelope(wave_2N)
    if level_E.max(initial=0) < AUDIBLE:
        return Heard("silent", (), ())
    hop_s = HOP / sample_rate_hz
    rough = rises(level_E, round(REST_S / hop_s))
    spectra = [bands(wave_2N, round(i * HOP), sample_rate_hz) for i in rough or [int(level_E.argmax())]]
    total = np.sum(spectra, axis=0)
    likeness = timbre_bands(sample_rate_hz) @ (total / (np.linalg.norm(total) + 1e-9))
    timbre = int(likeness.argmax())
    sound = world.ATTRIBUTES["sound"][timbre] if likeness[timbre] > MIN_LIKENESS else UNKNOWN
    onset_s = tuple(align(level_E, i, timbre) * hop_s for i in rough)
    return Heard(sound, onset_s, tuple(pan_at(wave_2N, t, sample_rate_hz) for t in onset_s))


def envelope(wave_2N: np.ndarray) -> np.ndarray:
    """RMS [E] of both channels together; value i covers the samples from i * HOP on."""
    power = np.concatenate([(wave_2N * wave_2N).sum(0), np.zeros(WINDOW, np.float32)])
    total = np.concatenate([[0.0], np.cumsum(power, dtype=np.float64)])
    start = np.arange(0, wave_2N.shape[1], HOP)
    return np.sqrt(np.maximum(total[start + WINDOW] - total[start], 0) / WINDOW)


def rises(level_E: np.ndarray, rest: int) -> list[int]:
    """Where the energy jumps up: rough onsets as indices of the envelope."""
    peak, found, i = level_E.max(), [], 0
    while i < len(level_E):
        before = level_E[max(0, i - 10) : max(0, i - 3)].max(initial=0)  # the window reaches 3 values ahead
        ahead = level_E[i : i + 8].max()
        if ahead > max(SHARE_OF_PEAK * peak, RISE * before + 0.01):
            while i < len(level_E) - 1 and level_E[i] < 0.35 * ahead:
                i += 1
            found.append(i)
            i += rest
        else:
            i += 1
    return found


def bands(wave_2N: np.ndarray, start: int, sample_rate_hz: int) -> np.ndarray:
    """Amplitude in 24 bands from 40 to 5000 Hz over the first moments of a sound."""
    piece = wave_2N[:, start : start + round(LOOK_S * sample_rate_hz)]
    piece = piece * np.hanning(piece.shape[1])
    power = (np.abs(np.fft.rfft(piece, 8192)) ** 2).sum(0)
    total = np.concatenate([[0.0], np.cumsum(power)])
    edge = np.searchsorted(np.fft.rfftfreq(8192, 1 / sample_rate_hz), np.geomspace(40, 5000, 25))
    return np.sqrt(total[edge[1:]] - total[edge[:-1]])


@lru_cache
def timbre_bands(sample_rate_hz: int) -> np.ndarray:
    """[3, 24], unit length: bell, drum, beep."""
    spectra = [bands(np.stack([wave, wave]), 0, sample_rate_hz) for wave in world.timbres().numpy()[: world.SILENT]]
    return np.stack([spectrum / np.linalg.norm(spectrum) for spectrum in spectra])


@lru_cache
def rise_form(timbre: int) -> np.ndarray:
    """Envelope of one timbre from 30 ms before its start to 60 ms after it."""
    wave = world.timbres().numpy()[timbre]
    wave = np.concatenate([np.zeros(12 * HOP, np.float32), wave[: 28 * HOP]])
    return envelope(np.stack([wave, wave]))[:36]


def align(level_E: np.ndarray, rough: int, timbre: int) -> float:
    """The onset as a (fractional) envelope index: where the measured rise correlates best with the timbre's."""
    form = rise_form(timbre)
    form = (form - form.mean()) / np.linalg.norm(form - form.mean())
    padded = np.pad(level_E, (32, 64))
    shifts = np.arange(rough - 16, rough + 17)
    measured = np.stack([padded[s + 20 : s + 20 + len(form)] for s in shifts])
    measured = measured - measured.mean(1, keepdims=True)
    likeness = measured @ form / (np.linalg.norm(measured, axis=1) + 1e-9)
    best = int(likeness.argmax())
    offset = 0.0
    if 0 < best < len(shifts) - 1:
        low, mid, high = likeness[best - 1 : best + 2]
        offset = 0.5 * (low - high) / min(low - 2 * mid + high, -1e-12)
    return max(0.0, float(shifts[best] + np.clip(offset, -0.5, 0.5)))


def pan_at(wave_2N: np.ndarray, onset_s: float, sample_rate_hz: int) -> float:
    """Where a sound stands, 0 left edge to 1 right edge of the picture: the inverse of `world.pan`."""
    start = round(onset_s * sample_rate_hz)
    left, right = np.sqrt((wave_2N[:, start : start + 2400] ** 2).mean(1))
    return float(np.clip((math.atan2(right, left) / (math.pi / 2) - 0.08) / 0.84, 0, 1))
