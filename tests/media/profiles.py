"""ICC profiles of matrix and curve, written by hand: what phones and cameras put into their pictures."""

from __future__ import annotations

import struct

import numpy as np

# Red, green and blue in CIE xy.
DISPLAY_P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
ADOBE_RGB = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))
SRGB = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
D65, D50 = np.array([0.95047, 1.0, 1.08883]), np.array([0.96422, 1.0, 0.82521])
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def to_xyz(primaries: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Linear RGB -> XYZ with white at D65, [3, 3]."""
    columns = np.array([[x / y, 1.0, (1 - x - y) / y] for x, y in primaries]).T
    return columns * np.linalg.solve(columns, D65)


def rgb_profile(primaries: tuple[tuple[float, float], ...], name: str, gamma: float | None = None) -> bytes:
    """``gamma`` ``None`` is sRGB's curve."""
    adapt = np.linalg.inv(_BRADFORD) @ np.diag((_BRADFORD @ D50) / (_BRADFORD @ D65)) @ _BRADFORD
    columns = (adapt @ to_xyz(primaries)).T
    tags = {b"desc": _text(name), b"cprt": _text("none"), b"wtpt": _xyz(D50)}
    for letter, column in zip((b"r", b"g", b"b"), columns, strict=True):
        tags[letter + b"XYZ"], tags[letter + b"TRC"] = _xyz(column), _curve(gamma)
    return _profile(b"RGB ", tags)


def grey_profile(gamma: float) -> bytes:
    return _profile(
        b"GRAY", {b"desc": _text("grey"), b"cprt": _text("none"), b"wtpt": _xyz(D50), b"kTRC": _curve(gamma)}
    )


def srgb_of(rgb: tuple[int, int, int], primaries: tuple[tuple[float, float], ...]) -> np.ndarray:
    """What a colour of these primaries and sRGB's curve is in sRGB, float [3] of 255."""
    v = np.array(rgb) / 255
    linear = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    v = np.clip(np.linalg.solve(to_xyz(SRGB), to_xyz(primaries) @ linear), 0, 1)
    return 255 * np.where(v <= 0.0031308, v * 12.92, 1.055 * v ** (1 / 2.4) - 0.055)


def _profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    at = 128 + 4 + 12 * len(tags)
    table, data = struct.pack(">I", len(tags)), b""
    for signature, content in tags.items():
        content += bytes(-len(content) % 4)
        table += signature + struct.pack(">II", at + len(data), len(content))
        data += content
    header = struct.pack(">I4sI4s4s4s", at + len(data), b"\0" * 4, 0x04300000, b"mntr", space, b"XYZ ")
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28)
    header += struct.pack(">3i", *(round(value * 65536) for value in D50))
    return header.ljust(128, b"\0") + table + data


def _text(words: str) -> bytes:
    text = words.encode("utf-16-be")
    return b"mluc" + struct.pack(">IIIHHII", 0, 1, 12, 0x656E, 0x5553, len(text), 28) + text


def _xyz(values: np.ndarray) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(float(value) * 65536) for value in values))


def _curve(gamma: float | None) -> bytes:
    if gamma is not None:
        return b"para" + struct.pack(">IHHi", 0, 0, 0, round(gamma * 65536))
    parts = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return b"para" + struct.pack(">IHH5i", 0, 3, 0, *(round(part * 65536) for part in parts))
