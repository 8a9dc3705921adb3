"""What moves in a clip, and where: differences of neighbouring small pictures, as a whole and by separate objects."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAX_SIDE = 192  # pictures are measured at this size
CONTRAST_FLOOR = 8  # of 255: what compression noise may change
MAX_NOISE_FLOOR = 32  # grain raises the floor, a flash of the whole picture must not
CELL = 8  # pixels; changes in touching cells belong to one object
MAX_OBJECTS = 6
REACH = 0.12  # of the longer side: how far an object goes between two frames
MAX_GAP = 3  # frames in which an object may stand still and be the same


@dataclass(frozen=True, slots=True)
class Part:
    """A connected region of change: centroid in 0..1 of the longer side, energy as a mean over the whole picture."""

    x: float
    y: float
    energy: float


@dataclass(slots=True)
class MotionTrack:
    """Fed one small picture at a time; entry i of the measurements lies between frames i and i + 1."""

    times_s: list[float] = field(default_factory=list)  # of frames
    energy: list[float] = field(default_factory=list)  # mean change over the picture, 0..255, noise removed
    centroid: list[tuple[float, float]] = field(default_factory=list)  # of the change; NaN where nothing changes
    parts: list[list[Part]] = field(default_factory=list)
    thumbnails: list[np.ndarray] = field(default_factory=list)  # of frames, one mean colour per cell
    _last: np.ndarray | None = None

    def add(self, time_s: float, picture: np.ndarray) -> None:
        """``picture``: uint8 [h, w, 3], its longer side about MAX_SIDE."""
        current = picture.astype(np.int16)
        self.times_s.append(time_s)
        self.thumbnails.append(_cells(picture).mean(axis=(1, 3)))
        if self._last is not None:
            size = np.abs(current - self._last).max(axis=2)
            floor = CONTRAST_FLOOR + min(MAX_NOISE_FLOOR, 4 * int(np.median(size)))
            size = np.maximum(0, size - floor).astype(np.float64)
            whole = _part(size, size > 0)
            self.energy.append(whole.energy)
            self.centroid.append((whole.x, whole.y))
            self.parts.append(_split(size) if whole.energy > 0 else [])
        self._last = current


def object_tracks(track: MotionTrack) -> list[tuple[np.ndarray, np.ndarray]]:
    """(energy [F - 1], centroid [F - 1, 2]) of each object; energy 0 where it does not move.

    Objects are joined over time by the nearest place. Where two cross, tracks may swap: their events are then noise
    among the true ones.
    """
    num = len(track.energy)
    found: list[dict[int, Part]] = []
    for i, parts in enumerate(track.parts):
        free = list(parts)
        pairs = sorted(
            (float(np.hypot(part.x - known[max(known)].x, part.y - known[max(known)].y)), k, n)
            for k, known in enumerate(found)
            if i - max(known) <= MAX_GAP
            for n, part in enumerate(parts)
        )
        taken: set[int] = set()
        for distance, k, n in pairs:
            if distance <= REACH * (i - max(found[k])) and k not in taken and parts[n] in free:
                found[k][i] = parts[n]
                free.remove(parts[n])
                taken.add(k)
        found += [{i: part} for part in free]
    tracks = []
    for known in found:
        if len(known) < 4:
            continue
        energy, centroid = np.zeros(num), np.full((num, 2), np.nan)
        for i, part in known.items():
            energy[i], centroid[i] = part.energy, (part.x, part.y)
        tracks.append((energy, centroid))
    return tracks


def _part(size: np.ndarray, where: np.ndarray) -> Part:
    weights = np.where(where, size, 0.0)
    total = float(weights.sum())
    if not total:
        return Part(float("nan"), float("nan"), 0.0)
    h, w = size.shape
    x = float(weights.sum(axis=0) @ np.arange(w)) / total / max(h, w)
    y = float(weights.sum(axis=1) @ np.arange(h)) / total / max(h, w)
    return Part(x, y, total / size.size)


def _split(size: np.ndarray) -> list[Part]:
    """Connected regions on a grid of cells, the strongest first. A moving disc changes at two edges, which must not
    count as two objects: cells within one of each other are connected."""
    h, w = size.shape
    cells = _cells(size).sum(axis=(1, 3))
    rows, columns = cells.shape
    active = {(int(r), int(c)) for r, c in np.argwhere(cells > 0.02 * cells.max())}
    parts = []
    while active:
        group, frontier = set(), [active.pop()]
        while frontier:
            r, c = frontier.pop()
            group.add((r, c))
            near = {(r + dr, c + dc) for dr in (-2, -1, 0, 1, 2) for dc in (-2, -1, 0, 1, 2)} & active
            active -= near
            frontier += near
        mask = np.zeros((rows, columns), bool)
        mask[tuple(zip(*group, strict=True))] = True
        parts.append(_part(size, mask.repeat(CELL, axis=0).repeat(CELL, axis=1)[:h, :w]))
    return sorted(parts, key=lambda part: -part.energy)[:MAX_OBJECTS]


def _cells(image: np.ndarray) -> np.ndarray:
    """[h, w, ...] -> [rows, CELL, columns, CELL, ...], zeros at the right and lower edge."""
    h, w = image.shape[:2]
    rows, columns = -(-h // CELL), -(-w // CELL)
    padded = np.zeros((rows * CELL, columns * CELL, *image.shape[2:]))
    padded[:h, :w] = image
    return padded.reshape(rows, CELL, columns, CELL, *image.shape[2:])
