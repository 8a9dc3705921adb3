"""Pictures onto canvases: how a keyframe of another ratio is fitted, and how large a reference becomes.

Lanczos and rounding are the reference pipeline's (docs/model.md, Keyframes and references): PIL's kernel, Python's
half-to-even ``round``.

fit       what happens to a keyframe whose ratio is not the canvas's
--------  ------------------------------------------------------------------------------------------------
stretch   both sides are scaled on their own
crop      scaled until it covers the canvas, the middle is kept
pad       scaled until it fits inside, black bars around
adapt     the canvas takes the first keyframe's ratio (unless the request names a size); what remains is cropped
released  the released model's habit: the first one presented is stretched, a second one is cropped
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from PIL import Image

from talkies.errors import InvalidRequest, MediaError
from talkies.h3.geometry import Limits, canvas_of_aspect, reference_image_size

Fit = Literal["stretch", "crop", "pad", "adapt", "released"]
FITS: tuple[str, ...] = get_args(Fit)
PAD_RGB = (0, 0, 0)


def fit_keyframes(
    images: Sequence[np.ndarray], *, width: int, height: int, fit: Fit | Sequence[Fit] = "released"
) -> list[np.ndarray]:
    """The keyframes of one request, in the order presented, each uint8 [height, width, 3].

    ``fit`` is one word for all or one per keyframe, so a mode belongs to its keyframe (its anchor) and not to a place
    in a list; only ``released`` asks who came first.
    """
    fits = [fit] * len(images) if isinstance(fit, str) else list(fit)
    if len(fits) != len(images):
        raise InvalidRequest(f"{len(fits)} fit modes for {len(images)} keyframes", param="fit")
    fitted = []
    for order, (image, mode) in enumerate(zip(images, fits, strict=True)):
        fitted.append(fit_image(image, width=width, height=height, fit=resolved_fit(mode, order)))
    return fitted


def resolved_fit(fit: Fit, order: int) -> Fit:
    """What ``released`` means for the keyframe presented at ``order``; others as they are."""
    return ("stretch" if order == 0 else "crop") if fit == "released" else fit


def kept_size(width: int, height: int, *, canvas: tuple[int, int], fit: str) -> tuple[int, int]:
    """(width, height) of the middle of a picture that :func:`fit_image` shows on a (width, height) canvas."""
    if fit not in ("crop", "adapt"):
        return width, height
    scale = max(canvas[0] / width, canvas[1] / height)
    return min(width, round(canvas[0] / scale)), min(height, round(canvas[1] / scale))


def fit_image(image: np.ndarray, *, width: int, height: int, fit: str) -> np.ndarray:
    """One picture, uint8 [H, W, 3] -> uint8 [height, width, 3]. ``adapt`` crops: its canvas is nearly the ratio.

    A picture that already has the canvas's size is returned as it is, without resampling.
    """
    source_height, source_width = image.shape[:2]
    if (source_width, source_height) == (width, height):
        return image
    scaled = lanczos(image, *scaled_size(source_width, source_height, canvas=(width, height), fit=fit))
    return on_canvas(scaled, width=width, height=height)


def scaled_size(width: int, height: int, *, canvas: tuple[int, int], fit: str) -> tuple[int, int]:
    """(width, height) that a picture is scaled to before :func:`on_canvas`; raises ``InvalidRequest`` for no mode."""
    if fit == "stretch":
        return canvas
    if fit in ("crop", "adapt"):
        scale = max(canvas[0] / width, canvas[1] / height)
        return max(canvas[0], round(width * scale)), max(canvas[1], round(height * scale))
    if fit == "pad":
        scale = min(canvas[0] / width, canvas[1] / height)
        return min(canvas[0], max(1, round(width * scale))), min(canvas[1], max(1, round(height * scale)))
    raise InvalidRequest(f"fit={fit!r} is not known", hint=f"use one of {', '.join(FITS)}", param="fit")


def on_canvas(image: np.ndarray, *, width: int, height: int) -> np.ndarray:
    """The middle of a picture that covers the canvas, or one that fits inside between black bars."""
    inner_height, inner_width = image.shape[:2]
    if inner_width >= width and inner_height >= height:
        left, top = (inner_width - width) // 2, (inner_height - height) // 2
        return np.ascontiguousarray(image[top : top + height, left : left + width])
    left, top = (width - inner_width) // 2, (height - inner_height) // 2
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = PAD_RGB
    canvas[top : top + inner_height, left : left + inner_width] = image
    return canvas


def resize_reference_image(image: np.ndarray, limits: Limits, *, name: str = "image") -> np.ndarray:
    """A reference picture at the model's short edge (up or down), each side to the nearest multiple, ratio kept.

    The output canvas has no say in it. Raises ``MediaError`` outside the allowed ratios.
    """
    height, width = image.shape[:2]
    if width > limits.max_aspect * height or height > limits.max_aspect * width:
        raise MediaError(
            f"{name} is {width}x{height}; its ratio must be within 1:{limits.max_aspect} and {limits.max_aspect}:1",
            hint="crop the picture",
            param=name,
        )
    return lanczos(image, *reference_image_size(width, height, limits))


def reference_video_size(width: int, height: int, limits: Limits) -> tuple[int, int]:
    """(width, height) for a reference video of this upright, square-pixel size: the canvas of its own ratio."""
    return canvas_of_aspect(width / height, limits)


def lanczos(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """PIL's Lanczos, uint8 [H, W, 3] -> uint8 [height, width, 3]; the picture itself if it has that size."""
    if image.shape[:2] == (height, width):
        return image
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))
