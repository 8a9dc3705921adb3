"""How far a clip is from the one that skips nothing, in picture, sound and their sync.

F frames, H and W pixels, N samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talkies.engine.pipeline.clip import Clip
from talkies.media.inspect.motion import MAX_SIDE, MotionTrack
from talkies.media.inspect.sync import sync_offset_s

BEST_DB = 120.0  # of what is equal
SILENT_RMS = 1e-3  # -60 dBFS: below it there is no sound whose likeness could be judged
WINDOW, SIGMA = 11, 1.5  # of SSIM, as Wang et al. (2004) have it
MELS, FFT, HOP, FLOOR_DB = 64, 1024, 256, -80.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """``None`` where there is nothing to compare: a clip without sound, or without events that make one.

    ``logmel_db``: mean absolute difference of log-mel spectra; ``loudness_db``: level over that of the lossless clip;
    ``sync_ms``: by how much the offset between events and sounds has moved."""

    psnr_db: float
    ssim: float
    si_sdr_db: float | None
    logmel_db: float
    loudness_db: float | None
    sync_ms: float | None


def differences(clip: Clip, lossless: Clip) -> Differences:
    """Of two clips of one request."""
    audible = min(_rms(lossless.audio), _rms(clip.audio)) > SILENT_RMS
    offsets = [_sync_s(one) for one in (clip, lossless)]
    moved = None if offsets[0] is None or offsets[1] is None else 1000 * abs(offsets[0] - offsets[1])
    return Differences(
        psnr_db=psnr_db(clip.frames, lossless.frames),
        ssim=ssim(clip.frames, lossless.frames),
        si_sdr_db=si_sdr_db(clip.audio, lossless.audio) if audible else None,
        logmel_db=logmel_db(clip.audio, lossless.audio, clip.sample_rate_hz),
        loudness_db=20 * math.log10(_rms(clip.audio) / _rms(lossless.audio)) if audible else None,
        sync_ms=moved,
    )


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    """Of uint8 [F, H, W, 3], over all values of the clip."""
    error = float(((a.astype(np.float64) - b) ** 2).mean())
    return min(BEST_DB, 10 * math.log10(255**2 / error)) if error else BEST_DB


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity of the luma (BT.709) of uint8 [F, H, W, 3], the mean over all windows that fit."""
    x, y = _luma(a), _luma(b)
    one = torch.exp(-(((torch.arange(WINDOW) - WINDOW // 2) / SIGMA) ** 2) / 2)
    window = torch.outer(one / one.sum(), one / one.sum())[None, None]
    mean_x, mean_y = F.conv2d(x, window), F.conv2d(y, window)
    var_x, var_y = F.conv2d(x * x, window) - mean_x**2, F.conv2d(y * y, window) - mean_y**2
    both = F.conv2d(x * y, window) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = (2 * mean_x * mean_y + c1) * (2 * both + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return float(found.mean())


def si_sdr_db(wave: np.ndarray, target: np.ndarray) -> float:
    """Scale-invariant signal-to-distortion ratio (Le Roux et al., 2019) of float32 [2, N], both channels as one."""
    x, y = wave.ravel().astype(np.float64), target.ravel().astype(np.float64)
    wanted = (x @ y) / (y @ y) * y
    error = float(((x - wanted) ** 2).sum())
    signal = float((wanted**2).sum())
    if not error:
        return BEST_DB
    return min(BEST_DB, 10 * math.log10(signal / error)) if signal else -BEST_DB


def logmel_db(wave: np.ndarray, target: np.ndarray, sample_rate_hz: int) -> float:
    """Mean absolute difference of the mel spectra in dB, nothing below ``FLOOR_DB`` counted."""
    return float((_logmel(wave, sample_rate_hz) - _logmel(target, sample_rate_hz)).abs().mean())


def _logmel(wave: np.ndarray, sample_rate_hz: int) -> Tensor:
    samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))
    window = torch.hann_window(FFT)
    power = torch.stft(samples, FFT, HOP, window=window, return_complex=True).abs() ** 2 / float(window.sum()) ** 2
    mels = _mel_filters(sample_rate_hz) @ power
    return (10 * torch.log10(mels.clamp_min(1e-12))).clamp_min(FLOOR_DB)


def _mel_filters(sample_rate_hz: int) -> Tensor:
    """Triangles [MELS, FFT / 2 + 1], evenly spaced in O'Shaughnessy's mel."""
    top = 2595 * math.log10(1 + sample_rate_hz / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = torch.linspace(0, sample_rate_hz / 2, FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_min(0)


def _luma(frames: np.ndarray) -> Tensor:
    weights = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
    return torch.from_numpy(frames.astype(np.float32) @ weights)[:, None]


def _rms(wave: np.ndarray) -> float:
    return float(np.sqrt((wave.astype(np.float64) ** 2).mean()))


def _sync_s(clip: Clip) -> float | None:
    track = MotionTrack()
    height, width = clip.frames.shape[1:3]
    factor = max(1, -(-max(height, width) // MAX_SIDE))
    for index, frame in enumerate(clip.frames[:, ::factor, ::factor]):
        track.add(index / clip.fps, np.ascontiguousarray(frame))
    return sync_offset_s(track, clip.audio, clip.sample_rate_hz)
