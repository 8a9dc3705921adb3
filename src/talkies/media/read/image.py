"""A picture file -> upright uint8 RGB [H, W, 3].

The size is known from the header before a pixel is decoded, so a small file that claims a huge picture costs nothing.
What each kind becomes: EXIF orientation is applied; alpha is laid over white; grey is repeated; 16-bit samples keep
their upper range (rounded to 8 bits); a colour profile is applied, so that the pixels are sRGB; CMYK without one is
converted by its plain formula; of an animation the first frame is taken.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress

import numpy as np
import pillow_heif
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from talkies.errors import MediaError, TooLarge
from talkies.files.paths import name_of, readable_file
from talkies.media.read.icc import to_srgb

# Pillow alone cannot read what phones save (HEIC); its registry is per process and this is idempotent.
pillow_heif.register_heif_opener()

# Pillow opens MPO, the JPEG with a preview that cameras write, as JPEG: there is no opener of that name.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "HEIF", "AVIF")
TURNED = (5, 6, 7, 8)  # EXIF orientations by a quarter turn
MAX_IMAGE_PIXELS = 5760 * 5760
FORMAT_WORDS = "JPEG, PNG, WEBP, HEIC or AVIF"


def read_image(
    source: str | os.PathLike[str] | bytes, *, name: str | None = None, max_pixels: int = MAX_IMAGE_PIXELS
) -> np.ndarray:
    """uint8 [H, W, 3], upright RGB. ``name`` is what messages call the picture (default: the file's name).

    Raises ``MediaError`` (unreadable, or not one of ``IMAGE_FORMATS``) and ``TooLarge`` (over ``max_pixels``).
    """
    name = name or ("image" if isinstance(source, bytes) else name_of(source))
    with _open(source, name) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise TooLarge(
                f"{name} has {width}x{height} pixels, over the limit of {max_pixels}",
                hint="scale the picture down",
                param=name,
            )
        try:
            pixels = np.asarray(_to_rgb(_upright(image)))
        except MemoryError:
            raise
        except Exception as exc:  # Pillow's decoders raise a dozen types on damaged bytes
            raise MediaError(f"{name} is damaged: {_line(exc)}", hint="save the picture again", param=name) from exc
    return pixels


def probe_image(source: str | os.PathLike[str] | bytes, *, name: str | None = None) -> tuple[str, int, int]:
    """(format, width, height) from the header; sides as stored, before the EXIF orientation."""
    name = name or ("image" if isinstance(source, bytes) else name_of(source))
    with _open(source, name) as image:
        kind = "JPEG" if image.format == "MPO" else str(image.format)
        return kind, image.size[0], image.size[1]


def upright_size(source: str | os.PathLike[str] | bytes, *, name: str | None = None) -> tuple[int, int]:
    """(width, height) as :func:`read_image` will show it, from the header. Raises ``MediaError``."""
    name = name or ("image" if isinstance(source, bytes) else name_of(source))
    with _open(source, name) as image:
        width, height = image.size
        turned = False
        if image.info.keys() & {"exif", "xmp"}:  # where there is neither, asking may decode the picture
            with suppress(Exception):  # damaged EXIF beside sound pixels: as in _upright
                turned = image.getexif().get(ExifTags.Base.Orientation, 1) in TURNED
    return (height, width) if turned else (width, height)


def _open(source: str | os.PathLike[str] | bytes, name: str) -> Image.Image:
    file = io.BytesIO(source) if isinstance(source, bytes) else readable_file(source, name)
    try:
        return Image.open(file, formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        kind = _guess(source)
        got = f"got {kind}" if kind else "its content is none of these"
        raise MediaError(f"{name} must be {FORMAT_WORDS}; {got}", hint="convert it", param=name) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise TooLarge(f"{name} is too large: {_line(exc)}", hint="scale the picture down", param=name) from None
    except Exception as exc:  # a damaged header; the types vary by format
        raise MediaError(f"cannot read {name}: {_line(exc)}", hint="save the picture again", param=name) from exc


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        # Damaged EXIF beside sound pixels: nobody knows which way is up, so the picture stays as it is stored.
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    profile = image.info.get("icc_profile")
    if image.mode in ("I;16", "I;16L", "I;16B", "I"):
        # convert("RGB") would clip 16-bit grey at 255 and leave a white picture.
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        image = Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8))
    if profile:
        image = to_srgb(image, profile)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _guess(source: str | os.PathLike[str] | bytes) -> str | None:
    """What the bytes are, as far as their first ones tell; ``None`` if they tell nothing."""
    try:
        head = source[:16] if isinstance(source, bytes) else _head(source)
    except OSError:
        return None
    if not head:
        return "an empty file"
    signatures = {
        b"GIF8": "GIF",
        b"BM": "BMP",
        b"II*\0": "TIFF",
        b"MM\0*": "TIFF",
        b"%PDF": "PDF",
        b"<svg": "SVG",
        b"<?xml": "XML or SVG",
        b"\0\0\1\0": "ICO",
        b"8BPS": "PSD",
        b"<!DO": "a web page",
        b"<htm": "a web page",
        b"<HTM": "a web page",
    }
    for magic, kind in signatures.items():
        if head.startswith(magic):
            return kind
    return "a video or another ISO media file" if head[4:8] == b"ftyp" else None


def _head(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read(16)


def _line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
