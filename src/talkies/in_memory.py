"""Pictures and sounds that a program holds in memory, as ``data:`` URLs: the engine reads those as it reads files, and
a clip's metadata has the hash of their content.

Pictures become PNG and sounds WAV of 32-bit floats, so that nothing is lost on the way.
"""

from __future__ import annotations

import base64
import io
import struct
from typing import TYPE_CHECKING, Any

from talkies.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

ACCEPTED = "a path, a URL, bytes of a file, a PIL picture, a uint8 or float array [H, W, 3], or (samples, rate)"


def data_url(kind: str, media: Any) -> str | None:
    """The URL of ``media``; ``None`` for what is no picture or sound in memory, such as a path.

    ``media``: bytes of a whole file of any kind; of ``image`` a PIL picture, an array or a torch tensor, uint8 or float
    in 0..1, [H, W], [H, W, C] or [C, H, W] of 1, 3 or 4 channels; of ``audio`` a pair of samples, float [N] or
    [channels, N] in -1..1, and their rate in Hz. Raises ``InvalidRequest`` for arrays of another shape or type.
    """
    if isinstance(media, (bytes, bytearray, memoryview)):
        if not media:
            raise InvalidRequest("conditions.uri is empty", hint=f"give {ACCEPTED}", param="conditions.uri")
        return _url("application/octet-stream", bytes(media))
    if isinstance(media, (list, tuple)) and len(media) == 2 and kind == "audio":
        return _url("audio/wav", _wav(*media))
    if hasattr(media, "getexif") and hasattr(media, "convert"):
        if kind != "image":
            raise _refused(kind, "a PIL picture")
        return _url("image/png", _png(media))
    array = _array(media)
    if array is None:
        return None
    if kind != "image":
        raise _refused(kind, f"an array of shape {tuple(array.shape)}")
    from PIL import Image

    return _url("image/png", _png(Image.fromarray(_pixels(array))))


def _refused(kind: str, what: str) -> InvalidRequest:
    way = "give (samples, rate in Hz)" if kind == "audio" else "write it to a file and give its path"
    return InvalidRequest(f"{what} is no {kind}", hint=way, param="conditions.uri")


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def _array(media: Any) -> np.ndarray | None:
    import numpy as np

    if hasattr(media, "detach"):  # torch, on whatever device
        media = media.detach().cpu()
        media = (media.float() if media.is_floating_point() else media).numpy()
    return media if isinstance(media, np.ndarray) else None


def _pixels(array: np.ndarray) -> np.ndarray:
    """uint8 [H, W] or [H, W, C]."""
    import numpy as np

    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise InvalidRequest(
            f"an array of shape {array.shape} is no picture",
            hint="give [H, W, 3] or [3, H, W], one picture at a time",
            param="conditions.uri",
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "f" or not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
        raise InvalidRequest(
            f"a picture of {array.dtype} must be in 0..1", hint="give uint8, or floats in 0..1", param="conditions.uri"
        )
    return np.rint(array * 255).astype(np.uint8)


def _png(picture: Any) -> bytes:
    from PIL import ImageOps

    profile = picture.info.get("icc_profile")
    upright = ImageOps.exif_transpose(picture)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = upright.convert("RGB")
        profile = None if picture.mode == "CMYK" else profile
    out = io.BytesIO()
    upright.save(out, "PNG", compress_level=1, **({"icc_profile": profile} if profile else {}))
    return out.getvalue()


def _wav(samples: Any, rate: Any) -> bytes:
    import numpy as np

    wave = _array(samples)
    try:
        wave = np.asarray(samples, np.float32) if wave is None else wave
    except (TypeError, ValueError):
        raise _refused("audio", f"a pair of {type(samples).__name__} and {type(rate).__name__}") from None
    wave = wave[None] if wave.ndim == 1 else wave
    whole = isinstance(rate, int) and not isinstance(rate, bool) and 0 < rate < 2**31
    if wave.ndim != 2 or 0 in wave.shape or wave.shape[0] > 8 or wave.dtype.kind != "f" or not whole:
        raise InvalidRequest(
            f"samples of shape {wave.shape} and type {wave.dtype} at {rate!r} Hz are no sound",
            hint="give floats in -1..1, [N] or [channels, N], and a whole rate in Hz",
            param="conditions.uri",
        )
    channels, data = wave.shape[0], np.ascontiguousarray(wave.T, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)  # 3: IEEE float
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
