"""What the text encoder reads of a request, in integers: sampled frames, patch grids, labels and vision blocks.

The pixels are made in ``codecs/text/patches.py`` and the ids in ``codecs/text/presentation.py``, both by what is said
here, so that whoever only counts (``capacity/demand.py``) counts the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from talkies.errors import InvalidRequest

Grid = tuple[int, int, int]  # merged pairs, patch rows, patch columns
SAMPLE_FPS = 2.0  # the rate at which the encoder sees a reference video


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionSizes:
    """Patch sizes and pixel bounds of the processors; the defaults are the release's."""

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    min_pixels: int = 65_536  # area of one image
    max_pixels: int = 16_777_216
    min_volume: int = 4_096  # frames * height * width of one sampled video
    max_volume: int = 25_165_824

    @property
    def multiple(self) -> int:
        """Sides of what the encoder sees are multiples of this."""
        return self.patch_size * self.merge_size

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


def sample_indices(num_frames: int, fps: float, sizes: VisionSizes) -> list[int]:
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
    if len(indices) < sizes.temporal_patch_size:
        least = round((sizes.temporal_patch_size - 1) * stride) + 1
        raise InvalidRequest(
            f"a reference video has {num_frames} frames at {fps:g} fps, at least {least} are needed",
            hint=f"use a clip of {least / fps:.2g} seconds or longer",
            param="references",
        )
    return indices


def pair_timestamps(num_sampled: int, sizes: VisionSizes) -> list[float]:
    """Seconds that label each merged pair: the mean of its frames' times; a repeated last frame has its own."""
    size = sizes.temporal_patch_size
    times = [i / SAMPLE_FPS for i in range(num_sampled)]
    times += [times[-1]] * (-num_sampled % size)
    return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenImage:
    """A keyframe or reference picture of this size."""

    height: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenVideo:
    """A reference video after truncation and resize."""

    num_frames: int
    height: int
    width: int
    fps: float
    has_soundtrack: bool


@dataclass(frozen=True, slots=True)
class SeenSound:
    """A reference that is sound alone. It takes a label; a waveform never reaches the encoder."""


Seen = SeenImage | SeenVideo | SeenSound


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionBlock:
    """Between a start and an end token ``num_pads`` places for one picture, or for one merged pair of a video."""

    kind: Literal["image", "video"]
    num_pads: int


Segment = str | VisionBlock  # a label to tokenize on its own, or a block


class Outline:
    """Numbers the pictures, videos and sounds of one request; call :meth:`segments` for each in request order."""

    def __init__(self, sizes: VisionSizes) -> None:
        self._sizes = sizes
        self.image_grids: list[Grid] = []
        self.video_grids: list[Grid] = []
        self._sounds = 0

    def segments(self, seen: Seen) -> Iterator[Segment]:
        """What stands before the prompt for ``seen``. Raises ``InvalidRequest`` for a video that is too short."""
        if isinstance(seen, SeenImage):
            grid = self._sizes.image_grid(seen.height, seen.width)
            self.image_grids.append(grid)
            yield f"<Picture {len(self.image_grids)}>: "
            yield VisionBlock(kind="image", num_pads=self._sizes.tokens_per_pair(grid))
            return
        # A soundtrack is announced before its picture, as its rows are packed before the picture's.
        if isinstance(seen, SeenSound) or seen.has_soundtrack:
            self._sounds += 1
            yield f"<Audio {self._sounds}>: "
        if isinstance(seen, SeenVideo):
            num_sampled = len(sample_indices(seen.num_frames, seen.fps, self._sizes))
            grid = self._sizes.video_grid(num_sampled, seen.height, seen.width)
            self.video_grids.append(grid)
            yield f"<Video {len(self.video_grids)}>: "
            for timestamp in pair_timestamps(num_sampled, self._sizes):
                # .1f rounds half to even: the first pair of 0 s and 0.5 s is "0.2".
                yield f"<{timestamp:.1f} seconds>"
                yield VisionBlock(kind="video", num_pads=self._sizes.tokens_per_pair(grid))

    @property
    def num_patches(self) -> int:
        """Of all grids so far."""
        return sum(math.prod(grid) for grid in (*self.image_grids, *self.video_grids))


def _shrink(height: int, width: int, beta: float, multiple: int) -> tuple[int, int]:
    def side(length: int) -> int:
        return max(multiple, math.floor(length / beta / multiple) * multiple)

    return side(height), side(width)


def _grow(height: int, width: int, beta: float, multiple: int) -> tuple[int, int]:
    return math.ceil(height * beta / multiple) * multiple, math.ceil(width * beta / multiple) * multiple
