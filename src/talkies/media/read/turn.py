"""Which way is up: the display matrix that phones write beside a video."""

from __future__ import annotations

import math
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType

NEARLY_UPRIGHT_DEGREES = 5.0  # a tilt that nobody means; players ignore it too


def upright(pixels: np.ndarray, frame: av.VideoFrame) -> np.ndarray:
    """Applies the display matrix, snapped to quarter turns and mirrors: x' = a x + c y, y' = b x + d y."""
    matrix = _matrix_of(frame)
    if matrix is None:
        return pixels
    a, b, c, d = matrix
    if abs(b) > abs(a):  # a quarter turn: rows become columns
        pixels = pixels.transpose(1, 0, 2)
        a, d = c, b
    if a < 0:
        pixels = pixels[:, ::-1]
    if d < 0:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def turn_note(frame: av.VideoFrame) -> str | None:
    """For the user, where the file asks for a turn that :func:`upright` does not do."""
    matrix = _matrix_of(frame)
    if matrix is None:
        return None
    a, b = matrix[:2]
    if min(abs(a), abs(b)) <= math.tan(math.radians(NEARLY_UPRIGHT_DEGREES)) * max(abs(a), abs(b)):
        return None
    angle = round(math.degrees(math.atan2(b, a))) % 360
    return f"the file asks for a turn by {angle} degrees: only quarter turns are done, here the nearest one"


def _matrix_of(frame: av.VideoFrame) -> tuple[int, int, int, int] | None:
    sides: Any = frame.side_data  # iteration gives values in PyAV 18 and keys in PyAV 19
    data = sides.get(SideDataType.DISPLAYMATRIX)
    if data is None:
        return None
    matrix = np.frombuffer(bytes(data)[:36], np.int32)
    if len(matrix) < 9:
        return None
    a, b, c, d = (int(matrix[i]) for i in (0, 1, 3, 4))
    return a, b, c, d
