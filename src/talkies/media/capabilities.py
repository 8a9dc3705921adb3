"""Which encoders and decoders the installed PyAV wheel brings."""

from __future__ import annotations

import av

ENCODERS = ("libx264", "aac", "libx265", "h264_nvenc")
DECODERS = ("h264", "hevc", "vp9", "av1", "aac", "mp3", "opus", "flac")


def codec_report() -> dict[str, bool]:
    """``{"libx264": True, ...}`` for encoders, ``{"h264 (read)": True, ...}`` for decoders."""
    report = {name: _has(name, "w") for name in ENCODERS}
    report.update({f"{name} (read)": _has(name, "r") for name in DECODERS})
    return report


def _has(name: str, mode: str) -> bool:
    try:
        av.Codec(name, mode)  # type: ignore[arg-type]
    except (av.error.FFmpegError, ValueError):
        return False
    return True
