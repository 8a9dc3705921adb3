"""Which shape an object has, and how big it is: its picture against drawings of every shape, size and blur.

F frames, H lines, W columns, P pixels of a patch, G drawings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

PATCH_PX = 18  # half side of the patch around the object
NUM_SHAPES = 3  # ball, square, triangle


def shape_of(coverage_FHW: np.ndarray, x_px: np.ndarray, y_px: np.ndarray, intensity: np.ndarray) -> tuple[int, float]:
    """Shape index and radius px: the best of the bank for the mean patch of the slowest bright frames.

    Coverage is 1 inside the object; centroid and intensity (1 at its peak) are [F].
    """
    speed = np.hypot(np.gradient(x_px), np.gradient(y_px))
    order = np.argsort(speed + 100 * (intensity < 0.6))[: max(6, len(speed) // 3)]
    chosen = order[intensity[order] >= 0.6]
    patch = np.mean([cut(coverage_FHW[f], x_px[f], y_px[f]) for f in chosen], axis=0)
    bank = shape_bank()
    best = int((bank.template_GP @ np.clip(patch, -0.2, 1.2).ravel()).argmax())
    return int(bank.shape_G[best]), float(bank.radius_G[best])


def cut(image_HW: np.ndarray, x_px: float, y_px: float) -> np.ndarray:
    """The patch around a point, bilinear, zeros outside the picture."""
    left, top = x_px - 0.5 - PATCH_PX, y_px - 0.5 - PATCH_PX
    column, line = int(np.floor(left)), int(np.floor(top))
    fx, fy = left - column, top - line
    side = 2 * PATCH_PX + 2
    padded = np.pad(image_HW, side)[line + side : line + 2 * side, column + side : column + 2 * side]
    rows = padded[:-1] * (1 - fy) + padded[1:] * fy
    return rows[:, :-1] * (1 - fx) + rows[:, 1:] * fx


@dataclass(frozen=True, slots=True)
class ShapeBank:
    template_GP: np.ndarray  # unit length, so that the best product is the least-squares fit with a free gain
    shape_G: np.ndarray
    radius_G: np.ndarray


@lru_cache
def shape_bank() -> ShapeBank:
    """Three shapes, radii 6.5 to 15 px, three degrees of blur, each centred like a measured patch and one px around."""
    templates, shapes, radii = [], [], []
    for shape in range(NUM_SHAPES):
        for radius in np.arange(6.5, 15.01, 0.25):
            for blur_px in (0.7, 1.2, 1.9):
                x = y = 0.0
                for _ in range(3):  # the centroid is taken as follow() takes it
                    patch = draw(shape, radius, x, y, blur_px)
                    weight = np.clip((patch - 0.3) / 0.4, 0, 1)
                    axis = np.arange(-PATCH_PX, PATCH_PX + 1)
                    x -= float((weight.sum(0) * axis).sum() / weight.sum())
                    y -= float((weight.sum(1) * axis).sum() / weight.sum())
                for dx in (-0.7, 0.0, 0.7):
                    for dy in (-0.7, 0.0, 0.7):
                        patch = draw(shape, radius, x + dx, y + dy, blur_px).ravel()
                        templates.append(patch / np.linalg.norm(patch))
                        shapes.append(shape)
                        radii.append(radius)
    return ShapeBank(np.array(templates, np.float32), np.array(shapes), np.array(radii))


def draw(shape: int, radius: float, x: float, y: float, blur_px: float) -> np.ndarray:
    """Coverage of one shape as `world.paint` draws it, blurred by softening its edge."""
    axis = np.arange(-PATCH_PX, PATCH_PX + 1, dtype=np.float32)
    dx, dy = axis[None, :] - x, axis[:, None] - y
    if shape == 0:
        distance = np.hypot(dx, dy) - radius
    elif shape == 1:
        distance = np.maximum(np.abs(dx), np.abs(dy)) - 0.88 * radius
    else:
        distance = np.maximum(dy - 0.85 * radius, 0.875 * np.abs(dx) - 0.484 * (dy + 1.05 * radius))
    sharp = np.clip(0.5 - distance, 0, 1)
    kernel = np.exp(-0.5 * (np.arange(-5, 6) / blur_px) ** 2)
    kernel /= kernel.sum()
    matrix = sum(weight * np.eye(len(axis), k=offset) for offset, weight in zip(range(-5, 6), kernel, strict=True))
    return matrix @ sharp @ matrix.T
