"""Clips whose every event is known: one coloured object that bounces, hits a wall or flashes, and its sounds."""

from __future__ import annotations

import numpy as np

FPS, RATE = 24, 32_000


def beep(seconds: float = 0.1, hz: float = 880.0, level: float = 0.5, rate: int = RATE) -> np.ndarray:
    t = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * hz * t) * np.exp(-t / (seconds / 3))).astype(np.float32)


def wave_with(events_s: list[float], duration_s: float, sound: np.ndarray | None = None) -> np.ndarray:
    """float32 [2, N] with a sound at each event."""
    wave = np.zeros((2, round(duration_s * RATE)), np.float32)
    sound = beep() if sound is None else sound
    for event in events_s:
        start = round(event * RATE)
        if 0 <= start < wave.shape[1]:
            part = sound[: wave.shape[1] - start]
            wave[:, start : start + len(part)] += part
    return wave


def ball(
    x: np.ndarray,
    y: np.ndarray,
    *,
    width: int = 320,
    height: int = 180,
    radius: float = 16.0,
    color: tuple[int, int, int] = (220, 40, 40),
    background: int = 30,
    strength: np.ndarray | None = None,
    noise: float = 0.0,
) -> np.ndarray:
    """uint8 [F, height, width, 3]: an antialiased disc at (x, y) per frame, blended in by ``strength``."""
    rng = np.random.default_rng(7)
    columns, rows = np.arange(width) + 0.5, (np.arange(height) + 0.5)[:, None]
    frames = np.empty((len(x), height, width, 3), np.uint8)
    for i in range(len(x)):
        cover = np.clip(radius + 0.5 - np.hypot(columns - x[i], rows - y[i]), 0, 1)[..., None]
        if strength is not None:
            cover = cover * strength[i]
        picture = background * (1 - cover) + np.array(color) * cover
        if noise:
            picture = picture + rng.normal(0, noise, picture.shape)
        frames[i] = np.clip(picture + 0.5, 0, 255)
    return frames


def bouncing(
    num_frames: int = 72, first_s: float = 0.41, period_s: float = 0.62, **look
) -> tuple[np.ndarray, list[float]]:
    """A ball thrown up again and again from the floor; its impacts lie off the frame grid."""
    t = np.arange(num_frames) / FPS
    phase = np.mod(t - first_s, period_s) / period_s
    y = 150 - 4 * 90 * phase * (1 - phase)
    duration = num_frames / FPS
    events = [first_s + k * period_s for k in range(-2, 20) if 0.1 < first_s + k * period_s < duration - 0.1]
    return ball(np.full(num_frames, 160.0), y, **look), events


def between_walls(num_frames: int = 72, speed: float = 300.0, **look) -> tuple[np.ndarray, list[float]]:
    """A ball that flies to and fro between the left and the right wall at constant speed."""
    t = np.arange(num_frames) / FPS
    low, high = 18.0, 302.0
    way = np.mod(140.0 + speed * t, 2 * (high - low))
    x = low + np.where(way < high - low, way, 2 * (high - low) - way)
    events = [(k * (high - low) - 140.0) / speed for k in range(1, 20)]
    return ball(x, np.full(num_frames, 90.0), **look), [e for e in events if 0.15 < e < num_frames / FPS - 0.15]


def stopping(num_frames: int = 60, stop_s: float = 1.33, **look) -> tuple[np.ndarray, list[float]]:
    """A ball that slides and stops dead."""
    t = np.minimum(np.arange(num_frames) / FPS, stop_s)
    return ball(40 + 170 * t, np.full(num_frames, 100.0), **look), [stop_s]


def flashing(num_frames: int = 60, **look) -> tuple[np.ndarray, list[float]]:
    """A dim disc that lights up at once and fades."""
    frames_on = [9, 23, 40]
    t = np.arange(num_frames)
    strength = np.full(num_frames, 0.2)
    for on in frames_on:
        strength = np.where(t >= on, 0.2 + 0.8 * np.exp(-(t - on) / 4.0), strength)
    still = np.full(num_frames, 1.0)
    return ball(160 * still, 90 * still, strength=strength, **look), [on / FPS for on in frames_on]
