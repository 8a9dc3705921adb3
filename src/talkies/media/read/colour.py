"""A decoded picture of any pixel format -> full-range RGB, right to half a level."""

from __future__ import annotations

import av
import numpy as np

# swscale's quick path for 8-bit 4:2:0 is 1.2 levels too dark on average and up to 2.5, and without whole chroma its
# other ones are no better. With these flags, and into planes (packed RGB has no fast code there: 10 ms a frame of
# 1280x720, planes and packing 1.7 ms), flat colours are within half a level.
# SWS_BILINEAR, SWS_FULL_CHR_H_INT and SWS_ACCURATE_RND: older PyAVs have no names for the latter two.
_EXACT = 0x2 | 0x2000 | 0x40000
_UNSPECIFIED, _FULL_RANGE = 2, 2  # in AVColorSpace and AVColorRange
_HD_LINES = 720


def rgb_of(frame: av.VideoFrame) -> np.ndarray:
    """uint8 [H, W, 3] full range. Untagged colours are BT.709 from 720 lines on and BT.601 below, as players assume."""
    if frame.format.is_rgb:
        return frame.to_ndarray(format="rgb24")
    matrix: str | int = frame.colorspace
    if matrix == _UNSPECIFIED:
        matrix = "ITU709" if frame.height >= _HD_LINES else "ITU601"
    if frame.color_range == _FULL_RANGE and frame.format.components[0].bits > 8:
        # To 8 bits swscale divides by a power of two, which makes 1023 of 10 bits 255.75.
        deep = frame.reformat(format="gbrp16le", src_colorspace=matrix, interpolation=_EXACT).to_ndarray()
        return ((deep.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    planes = frame.reformat(format="gbrp", src_colorspace=matrix, interpolation=_EXACT)
    return planes.reformat(format="rgb24").to_ndarray()
