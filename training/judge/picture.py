"""What the picture of a clip shows: colour, shape, size, place, motion, tempo and the times of its visual events.

F frames, H lines, W columns. Pictures are float32 in 0..1. Everything is a fit to the world's own forms, so that
blur, noise and compression cost accuracy gradually. A canvas is read at a short edge of 64 px, whatever its own, so
that lengths and thresholds are in relation to it:

    background  medians over time and space, one value a line (and a column beside the walls)
    object      pixels that differ from it, projected on the object's own colour; centroid around the densest spot
    shape       `shape`: the mean aligned patch against a bank of balls, squares and triangles
    events      `timing`: least squares over period and first event, or start and wall hit
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training import world
from training.judge.shape import PATCH_PX, shape_of
from training.judge.timing import LAWS, periodic, slide

UNKNOWN = "unknown"
SHORT_EDGE_PX = 64
MIN_CONTRAST = 0.12  # a weaker difference from the background is no object
MIN_TRAVEL_PX = 8.0  # shorter than every bounce (26 px) and every slide in 22 frames (18 px)
STEADY = 0.6  # an object whose intensity falls below this share of its peak flashes (the world's share is 0.25)


@dataclass(frozen=True, slots=True)
class Picture:
    """Attribute values by name; `event_s` and `event_x` (0 left edge, 1 right edge) have one entry per event."""

    color: str
    shape: str
    size: str
    background: str
    motion: str
    tempo: str | None
    place: str | None
    event_s: tuple[float, ...]
    event_x: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """The object in every frame: coverage [F, H, W] (1 inside), centroid px [F], intensity [F] (1 at its peak)."""

    coverage_FHW: np.ndarray
    x_px: np.ndarray
    y_px: np.ndarray
    intensity: np.ndarray
    color_rgb: np.ndarray  # difference from the background at the brightest frames


def look(frames_FHWC: np.ndarray, fps: int) -> Picture:
    """Reads one clip, uint8 [F, H, W, 3], whose short edge is 64 or 128 px."""
    times = min(frames_FHWC.shape[1:3]) // SHORT_EDGE_PX
    laws = LAWS[min(max(times, 1), max(LAWS))]
    video = shrink(frames_FHWC.astype(np.float32) / 255, times)
    num_frames, width = len(video), video.shape[2]
    scene, inside_rgb = background(video)
    dark = int(inside_rgb.mean() > 0.5)
    track = follow(video - scene)
    if track is None:
        value = world.ATTRIBUTES["background"][dark]
        return Picture(UNKNOWN, UNKNOWN, UNKNOWN, value, UNKNOWN, None, None, (), ())
    time_s = np.arange(num_frames, dtype=np.float32) / fps
    motion = motion_of(track)
    shape, radius_px = shape_of(track.coverage_FHW, track.x_px, track.y_px, track.intensity)
    size = int(np.abs(np.array(world.RADIUS_PX) - radius_px).argmin())
    is_fast, event_s, place = None, np.zeros(0), None
    if motion in (world.LEFT, world.RIGHT):
        room_px = width - 2 * (world.WALL_PX + world.RADIUS_PX[size])
        is_fast, event_s = slide(time_s, track.x_px, room_px)
    else:
        place = place_of(float(np.median(track.x_px[track.intensity > 0.5])), world.RADIUS_PX[size], width)
        if motion != world.STAY:
            signal = -track.y_px if motion == world.BOUNCE else track.intensity
            is_fast, event_s = periodic(time_s, signal, motion, laws)
    names = world.ATTRIBUTES
    frame = np.clip(np.round(event_s * fps).astype(int), 0, num_frames - 1)
    return Picture(
        color=names["color"][color_of(track.color_rgb, inside_rgb, motion)],
        shape=names["shape"][shape],
        size=names["size"][size],
        background=names["background"][dark],
        motion=names["motion"][motion],
        tempo=None if is_fast is None else names["tempo"][int(is_fast)],
        place=None if place is None else names["place"][place],
        event_s=tuple(event_s.tolist()),
        event_x=tuple((track.x_px[frame] / width).tolist()),
    )


def shrink(video_FHWC: np.ndarray, times: int) -> np.ndarray:
    """Every square of `times` pixels as its mean."""
    if times <= 1:
        return video_FHWC
    frames, height, width = (video_FHWC.shape[0], *(side // times for side in video_FHWC.shape[1:3]))
    squares = video_FHWC[:, : height * times, : width * times].reshape(frames, height, times, width, times, 3)
    return squares.mean((2, 4))


def background(video_FHWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The empty scene [H, W, 3] and its colour away from floor and walls [3].

    The object covers under half of any line and of any column, so medians do not see it, even where it never moves.
    """
    height, width = video_FHWC.shape[1:3]
    some = video_FHWC[:: max(1, len(video_FHWC) // 16)]
    floor, wall = height - 8, int(world.WALL_PX)
    lines = np.median(some[:, :, wall + 1 : width - wall - 1], axis=(0, 2))
    scene = np.repeat(lines[:, None], width, axis=1)
    for columns in (slice(0, wall + 3), slice(width - wall - 3, width)):
        scene[: floor - 1, columns] = np.median(some[:, : floor - 1, columns], axis=(0, 1))
    return scene, np.median(lines[: floor - 2], axis=0)


def follow(difference_FHWC: np.ndarray) -> Track | None:
    """Finds the object in every frame, or None where nothing stands out."""
    num_frames, height, width = difference_FHWC.shape[:3]
    floor, wall = height - 8, int(world.WALL_PX)
    difference_FHWC = difference_FHWC.copy()
    difference_FHWC[:, floor:] = 0
    difference_FHWC[:, :, :wall] = difference_FHWC[:, :, width - wall :] = 0
    smooth = box(difference_FHWC, 1)
    sparse = smooth[:, ::2, ::2]  # enough to find the object's core, which is smooth by now
    strength = np.sqrt((sparse * sparse).sum(-1)).reshape(num_frames, -1)
    core = np.argpartition(strength, -10, axis=1)[:, -10:]
    level = np.take_along_axis(strength, core, 1).mean(1)
    if level.max() < MIN_CONTRAST:
        return None
    bright = np.flatnonzero(level > 0.85 * level.max())
    pixels = sparse.reshape(num_frames, -1, 3)[bright[:, None], core[bright]]
    color_rgb = np.median(pixels.reshape(-1, 3), axis=0)
    projected = smooth @ (color_rgb / (color_rgb @ color_rgb))
    intensity = np.partition(projected[:, ::2, ::2].reshape(num_frames, -1), -10, axis=1)[:, -10:].mean(1)
    intensity = np.maximum(intensity, 0.02)
    coverage = projected / intensity[:, None, None]
    weight = np.clip((coverage - 0.3) / 0.4, 0, 1)
    density = box(weight[..., None], 7)[..., 0].reshape(num_frames, -1)
    y, x = np.divmod(density.argmax(1).astype(np.float32), width)
    lines, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    for _ in range(2):
        near = weight * (np.abs(lines - y[:, None]) <= PATCH_PX)[:, :, None]
        near = near * (np.abs(columns - x[:, None]) <= PATCH_PX)[:, None, :]
        total = near.sum((1, 2)) + 1e-6
        y, x = near.sum(2) @ lines / total, near.sum(1) @ columns / total
    inside = (coverage > 0.75) & (near > 0)
    if inside[bright].any():  # all of the object, since its lit side is the strongest and not its colour
        color_rgb = np.median(smooth[bright][inside[bright]], axis=0)
    return Track(coverage, x + 0.5, y + 0.5, intensity / np.median(np.sort(intensity)[-3:]), color_rgb)


def box(image_FHWC: np.ndarray, reach: int) -> np.ndarray:
    """Mean over a square of side 2 * reach + 1, zeros outside."""
    for axis in (1, 2):
        padding = [(0, 0)] * 4
        padding[axis] = (reach + 1, reach)
        total = np.cumsum(np.pad(image_FHWC, padding), axis=axis, dtype=np.float32)
        side, size = 2 * reach + 1, image_FHWC.shape[axis]
        ahead = np.take(total, np.arange(side, side + size), axis=axis)
        image_FHWC = (ahead - np.take(total, np.arange(size), axis=axis)) / side
    return image_FHWC


def motion_of(track: Track) -> int:
    seen = track.intensity > 0.4
    x, y = track.x_px[seen], track.y_px[seen]
    count = max(2, len(x) // 10)
    travel = float(np.median(x[-count:]) - np.median(x[:count]))
    lift = float(np.percentile(y, 95) - np.percentile(y, 5))
    if lift > MIN_TRAVEL_PX and lift > abs(travel):
        return world.BOUNCE
    if abs(travel) > MIN_TRAVEL_PX:
        return world.RIGHT if travel > 0 else world.LEFT
    return world.FLASH if np.percentile(track.intensity, 15) < STEADY else world.STAY


def color_of(difference_rgb: np.ndarray, inside_rgb: np.ndarray, motion: int) -> int:
    """The palette entry that explains the difference from the background; a flash may be seen below its peak."""
    dimmest = 0.6 if motion == world.FLASH else 0.9
    candidates = np.array(world.COLOR_RGB, np.float32) - inside_rgb
    alpha = (candidates @ difference_rgb) / (candidates * candidates).sum(1)
    alpha = np.clip(alpha, dimmest, 1.05)
    return int(((difference_rgb - alpha[:, None] * candidates) ** 2).sum(1).argmin())


def place_of(x_px: float, radius_px: float, width: int) -> int:
    side = max(world.WALL_PX + radius_px + 3, 0.2 * width)
    return int(np.abs(np.array([side, width / 2, width - side]) - x_px).argmin())
