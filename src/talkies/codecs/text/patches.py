"""Pixels -> patch rows for the vision tower (tests/parity/test_codecs_patches.py): numpy and Pillow, no torchvision.

A patch row is ``channels * temporal * patch * patch`` float32 values, channel slowest. Rows come in the tower's
order: for each merged frame pair, blocks of merge x merge patches row-major, patches row-major inside a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from talkies.errors import CheckpointError, InvalidRequest
from talkies.files.component_folders import read_json

Grid = tuple[int, int, int]  # merged pairs, patch rows, patch columns
SAMPLE_FPS = 2.0  # the rate at which the encoder sees a reference video


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchConfig:
    """Sizes and pixel bounds of the processors; the defaults are the release's."""

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    min_pixels: int = 65_536  # area of one image
    max_pixels: int = 16_777_216
    min_volume: int = 4_096  # frames * height * width of one sampled video
    max_volume: int = 25_165_824

    @property
    def multiple(self) -> int:
        """Sides of what the encoder sees are multiples of this."""
        return self.patch_size * self.merge_size

    @classmethod
    def load(cls, folder: Path | None) -> PatchConfig:
        """From a ``processor/`` folder: ``preprocessor_config.json``, ``video_preprocessor_config.json`` or the
        nested ``processor_config.json`` of newer saves. ``None``, or a folder without them, is the release."""
        image: Mapping[str, Any] = {}
        video: Mapping[str, Any] = {}
        if folder is not None:
            nested = _optional(folder / "processor_config.json")
            image = _optional(folder / "preprocessor_config.json") or nested.get("image_processor") or {}
            video = _optional(folder / "video_preprocessor_config.json") or nested.get("video_processor") or {}
        default = cls()
        min_pixels, max_pixels = _bounds(image, default.min_pixels, default.max_pixels)
        min_volume, max_volume = _bounds(video, default.min_volume, default.max_volume)
        return cls(
            patch_size=int(image.get("patch_size", default.patch_size)),
            temporal_patch_size=int(image.get("temporal_patch_size", default.temporal_patch_size)),
            merge_size=int(image.get("merge_size", default.merge_size)),
            image_mean=tuple(image.get("image_mean") or default.image_mean),
            image_std=tuple(image.get("image_std") or default.image_std),
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            min_volume=min_volume,
            max_volume=max_volume,
        )

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) at which the encoder sees an image: nearest multiples, inside the bounds on the area."""
        m = self.multiple
        new_h, new_w = round(height / m) * m, round(width / m) * m
        if new_h * new_w > self.max_pixels:
            return _shrink(height, width, math.sqrt(height * width / self.max_pixels), m)
        if new_h * new_w < self.min_pixels:
            return _grow(height, width, math.sqrt(self.min_pixels / (height * width)), m)
        return new_h, new_w

    def video_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) at which the encoder sees ``num_frames`` sampled frames: the bounds are on the volume."""
        m = self.multiple
        if height < m or width < m:
            scale = max(m / height, m / width)
            height, width = int(height * scale), int(width * scale)
        new_h, new_w = round(height / m) * m, round(width / m) * m
        pairs = self.temporal_patch_size
        volume = round(num_frames / pairs) * pairs * new_h * new_w
        if volume > self.max_volume:
            return _shrink(height, width, math.sqrt(num_frames * height * width / self.max_volume), m)
        if volume < self.min_volume:
            return _grow(height, width, math.sqrt(self.min_volume / (num_frames * height * width)), m)
        return new_h, new_w

    def image_grid(self, height: int, width: int) -> Grid:
        """The patch grid of an image of this source size."""
        new_h, new_w = self.image_size(height, width)
        return 1, new_h // self.patch_size, new_w // self.patch_size

    def video_grid(self, num_sampled: int, height: int, width: int) -> Grid:
        """The patch grid of ``num_sampled`` frames of this source size."""
        new_h, new_w = self.video_size(num_sampled, height, width)
        pairs = -(-num_sampled // self.temporal_patch_size)
        return pairs, new_h // self.patch_size, new_w // self.patch_size

    def tokens_per_pair(self, grid: Grid) -> int:
        """Pad tokens of one vision block of ``grid``."""
        return grid[1] * grid[2] // self.merge_size**2


def sample_indices(num_frames: int, fps: float, config: PatchConfig) -> list[int]:
    """The frames of a clip that the encoder sees: every ``fps / 2``-th.

    Raises ``InvalidRequest`` when there are too few for one merged pair (13 frames at 24 fps).
    """
    stride = fps / SAMPLE_FPS
    indices: list[int] = []
    position = 0.0
    while round(position) < num_frames:
        if not indices or round(position) > indices[-1]:
            indices.append(round(position))
        position += stride
    if len(indices) < config.temporal_patch_size:
        least = round((config.temporal_patch_size - 1) * stride) + 1
        raise InvalidRequest(
            f"a reference video has {num_frames} frames at {fps:g} fps, at least {least} are needed",
            hint=f"use a clip of {least / fps:.2g} seconds or longer",
            param="references",
        )
    return indices


def pair_timestamps(num_sampled: int, config: PatchConfig) -> list[float]:
    """Seconds that label each merged pair: the mean of its frames' times; a repeated last frame has its own."""
    size = config.temporal_patch_size
    times = [i / SAMPLE_FPS for i in range(num_sampled)]
    times += [times[-1]] * (-num_sampled % size)
    return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]


def image_rows(pixels: np.ndarray, config: PatchConfig) -> np.ndarray:
    """uint8 [h, w, 3] -> float32 patch rows; the one frame fills every place of its temporal patch."""
    frame = _normalized(pixels, config.image_size(*pixels.shape[:2]), config)
    return _patchify(np.repeat(frame[None], config.temporal_patch_size, axis=0), config)


def video_rows(frames: np.ndarray, config: PatchConfig) -> np.ndarray:
    """Sampled uint8 frames [n, h, w, 3] -> float32 patch rows; an odd count repeats the last frame."""
    size = config.video_size(frames.shape[0], *frames.shape[1:3])
    prepared = [_normalized(frame, size, config) for frame in frames]
    prepared += [prepared[-1]] * (-len(prepared) % config.temporal_patch_size)
    return _patchify(np.stack(prepared), config)


def concatenate(rows: Iterable[np.ndarray]) -> np.ndarray | None:
    """All rows of one kind in request order, or ``None`` when there are none."""
    parts = list(rows)
    return np.concatenate(parts) if parts else None


def _normalized(pixels: np.ndarray, size: tuple[int, int], config: PatchConfig) -> np.ndarray:
    """uint8 [h, w, 3] -> float32 [3, H, W] at ``size``."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"pixels are {pixels.dtype} {list(pixels.shape)}, not uint8 [h, w, 3]")
    if pixels.shape[:2] != size:
        resized = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        pixels = np.asarray(resized)
    scaled = pixels.astype(np.float32) * np.float32(1 / 255)
    mean, std = (np.asarray(v, dtype=np.float32) for v in (config.image_mean, config.image_std))
    return np.ascontiguousarray(((scaled - mean) / std).transpose(2, 0, 1))


def _patchify(frames: np.ndarray, config: PatchConfig) -> np.ndarray:
    """[F, 3, H, W] -> rows; F is a multiple of the temporal patch."""
    p, tp, m = config.patch_size, config.temporal_patch_size, config.merge_size
    num_frames, c, height, width = frames.shape
    blocks = frames.reshape(num_frames // tp, tp, c, height // (m * p), m, p, width // (m * p), m, p)
    return blocks.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, c * tp * p * p)


def _shrink(height: int, width: int, beta: float, multiple: int) -> tuple[int, int]:
    def side(length: int) -> int:
        return max(multiple, math.floor(length / beta / multiple) * multiple)

    return side(height), side(width)


def _grow(height: int, width: int, beta: float, multiple: int) -> tuple[int, int]:
    return math.ceil(height * beta / multiple) * multiple, math.ceil(width * beta / multiple) * multiple


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _bounds(config: Mapping[str, Any], low: int, high: int) -> tuple[int, int]:
    """Bounds on the area or volume; the keys say edges for historical reasons."""
    size = config.get("size") or {}
    low = int(config.get("min_pixels") or size.get("shortest_edge") or low)
    high = int(config.get("max_pixels") or size.get("longest_edge") or high)
    if low > high:
        raise CheckpointError(f"processor: lower pixel bound {low} is over the upper bound {high}", param="processor")
    return low, high
