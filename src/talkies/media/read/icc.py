"""The colour profile of a picture: phones save Display P3, cameras Adobe RGB, scanners CMYK; models know sRGB."""

from __future__ import annotations

import io

from PIL import Image, ImageCms

# By a profile's colour space: what it is applied to, and the modes of pictures that it can belong to.
_MODES = {
    "RGB": ("RGB", ("RGB", "RGBA", "RGBa", "P", "PA", "L", "LA", "La", "1")),
    "GRAY": ("L", ("L", "LA", "La", "1")),
    "CMYK": ("CMYK", ("CMYK",)),
}


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """The picture as RGB, RGBA if it has alpha, converted from ``profile``.

    Unchanged where the profile is sRGB, damaged, or belongs to another kind of picture.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode, fitting = _MODES[source.profile.xcolor_space.strip()]
        if image.mode not in fitting or "srgb" in ImageCms.getProfileDescription(source).lower():
            return image
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        converted = ImageCms.profileToProfile(
            image.convert(mode),
            source,
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            outputMode="RGB",
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, KeyError, ValueError):
        return image  # a damaged profile beside sound pixels, or one of a device: as viewers show it
    assert converted is not None  # it is only where the picture is converted in place
    if alpha is not None:
        converted.putalpha(alpha)
    return converted
