"""Pixels -> patch rows for the vision tower (tests/parity/test_codecs_patches.py): numpy and Pillow, no torchvision.

A patch row is ``channels * temporal * patch * patch`` float32 values, channel slowest. Rows come in the tower's
order: for each merged frame pair, blocks of merge x merge patches row-major, patches row-major inside a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from talkies.errors import CheckpointError
from talkies.files.json_files import read_json
from talkies.h3.vision import VisionSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchConfig(VisionSizes):
    """The processors' sizes, pixel bounds and statistics; the defaults are the release's."""

    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @property
    def sizes(self) -> VisionSizes:
        """What counting needs of it, importable without numpy."""
        return VisionSizes(**{f.name: getattr(self, f.name) for f in fields(VisionSizes)})

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
